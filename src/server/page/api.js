// The server: OpenAI's API beside this page, wherever a proxy has put the two.

class ApiFailure extends Error {
  constructor(message, {status = 0, code = null, retryAfter = null} = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }
}

function headersFor(key) {
  const headers = {'Content-Type': 'application/json'};
  if (key !== '') {
    headers.Authorization = `Bearer ${key}`;
  }
  return headers;
}

async function failureOf(response) {
  const text = await response.text().catch(() => '');
  let error = {};
  try {
    error = JSON.parse(text).error ?? {};
  } catch {
    error = {message: text.slice(0, 500)};
  }
  const wait = Number(response.headers.get('Retry-After'));
  return new ApiFailure(String(error.message || `The server answered ${response.status} ${response.statusText}.`), {
    status: response.status,
    code: error.code ?? null,
    retryAfter: wait > 0 ? wait : null,
  });
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(path, {cache: 'no-store', ...options});
  } catch (error) {
    if (error.name === 'AbortError') {
      throw error;
    }
    throw new ApiFailure('The server cannot be reached. Is lily still running?');
  }
  if (!response.ok) {
    throw await failureOf(response);
  }
  return response;
}

// {id, context} of the model that is served.
async function servedModel(key) {
  const body = await (await request('v1/models', {headers: headersFor(key)})).json();
  const model = body?.data?.[0];
  if (typeof model?.id !== 'string') {
    throw new ApiFailure('The server names no model.');
  }
  return {id: model.id, context: model.context_length ?? model.max_model_len ?? null};
}

// The data of server-sent events, whatever way the bytes were cut. Comments keep a silent connection alive.
async function* eventData(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  let data = [];
  for (;;) {
    const {value, done} = await reader.read();
    if (done) {
      return;
    }
    const lines = (rest + value).split('\n');
    rest = lines.pop();
    for (const raw of lines) {
      const line = raw.endsWith('\r') ? raw.slice(0, -1) : raw;
      if (line.startsWith('data:')) {
        data.push(line.slice(line[5] === ' ' ? 6 : 5));
      } else if (line === '' && data.length > 0) {
        yield data.join('\n');
        data = [];
      }
    }
  }
}

// Calls take(chunk) for every chunk of an answer. Returns when it is complete, and throws an ApiFailure otherwise.
async function streamChat(body, key, signal, take) {
  const response = await request('v1/chat/completions', {
    method: 'POST',
    headers: headersFor(key),
    body: JSON.stringify(body),
    signal,
  });
  let finished = false;
  try {
    for await (const data of eventData(response.body)) {
      if (data === '[DONE]') {
        return;
      }
      const chunk = JSON.parse(data);
      if (chunk.error) {
        throw new ApiFailure(String(chunk.error.message ?? 'The answer failed.'), {code: chunk.error.code ?? null});
      }
      finished = finished || Boolean(chunk.choices?.[0]?.finish_reason);
      take(chunk);
    }
  } catch (error) {
    if (error.name === 'AbortError' || error instanceof ApiFailure) {
      throw error;
    }
    throw new ApiFailure(error instanceof SyntaxError
      ? 'The server sent something that is no answer.'
      : 'The connection was lost in the middle of the answer.');
  }
  if (!finished) {
    throw new ApiFailure('The connection ended before the answer did.');
  }
}
