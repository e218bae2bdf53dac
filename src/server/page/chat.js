// A conversation and how it becomes a request. Messages are {role: 'user', content}, {role: 'assistant', content,
// reasoning, calls: [{id, name, arguments}], stats, finish, error, stopped} and {role: 'tool', content, id}.

// name -> label, smallest, largest, step ('1' = whole numbers), hint
const kNumbers = {
  temperature: ['Temperature', 0, 2, '0.05'],
  top_p: ['Top p', 0, 1, '0.01'],
  top_k: ['Top k', -1, 1e6, '1'],
  min_p: ['Min p', 0, 1, '0.01'],
  presence_penalty: ['Presence penalty', -2, 2, '0.1'],
  frequency_penalty: ['Frequency penalty', -2, 2, '0.1'],
  repetition_penalty: ['Repetition penalty', 0.001, 10, '0.05'],
  seed: ['Seed', -1, Number.MAX_SAFE_INTEGER, '1'],
  max_tokens: ['Max tokens', 1, 1e9, '1'],
};

const kExampleTools = [{
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'Get the current weather of a city.',
    parameters: {
      type: 'object',
      properties: {city: {type: 'string', description: 'Name of the city'}},
      required: ['city'],
    },
  },
}];

// crypto.randomUUID is missing on pages that came over plain HTTP from another machine.
function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, '0')).join('');
}

function newConversation(settings) {
  const now = Date.now();
  return {id: newId(), title: '', created: now, updated: now, system: settings.system, tools: settings.tools, messages: []};
}

function titleOf(conversation) {
  const first = conversation.messages.find(({role}) => role === 'user')?.content.trim().replace(/\s+/g, ' ') ?? '';
  return conversation.title || (first.length > 60 ? `${first.slice(0, 57)}...` : first) || 'New conversation';
}

// {value} or {fault}. Functions without the "type" around them are wrapped.
function parseTools(text) {
  if (text.trim() === '') {
    return {value: []};
  }
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    return {fault: `The tools are not JSON: ${error.message}`};
  }
  const list = (Array.isArray(value) ? value : [value]).map((tool) =>
    tool?.function === undefined && typeof tool?.name === 'string' ? {type: 'function', function: tool} : tool);
  const wrong = list.findIndex((tool) => tool?.type !== 'function' || typeof tool.function?.name !== 'string');
  return wrong < 0 ? {value: list} : {fault: `Tool ${wrong + 1} has no "type": "function" with a "function": {"name": ...}.`};
}

// {value} (absent when empty) or {fault}
function parseNumber(name, text) {
  const [label, least, most, step] = kNumbers[name];
  if (text.trim() === '') {
    return {};
  }
  const value = Number(text);
  if (!Number.isFinite(value) || value < least || value > most || (step === '1' && !Number.isInteger(value))) {
    const range = most >= 1e6 ? `from ${least}` : `from ${least} to ${most}`;
    return {fault: `${label} must be a ${step === '1' ? 'whole ' : ''}number ${range}.`};
  }
  return {value};
}

function toWire(message) {
  if (message.role === 'tool') {
    return {role: 'tool', tool_call_id: message.id, content: message.content};
  }
  if (message.role === 'user') {
    return {role: 'user', content: message.content};
  }
  const out = {role: 'assistant', content: message.content};
  if (message.reasoning !== '') {
    out.reasoning_content = message.reasoning;
  }
  if (message.calls.length > 0) {
    out.tool_calls = message.calls.map((call) =>
      ({id: call.id, type: 'function', function: {name: call.name, arguments: call.arguments}}));
  }
  return out;
}

const isEmptyAnswer = (message) =>
  message.role === 'assistant' && message.content === '' && message.reasoning === '' && message.calls.length === 0;

// The body of a request that answers `messages`, or continues the last of them.
function requestBody(conversation, messages, settings, model, continuing) {
  const body = {
    model,
    messages: messages.filter((message) => !isEmptyAnswer(message)).map(toWire),
    stream: true,
    stream_options: {include_usage: true},
    chat_template_kwargs: {enable_thinking: settings.thinking, preserve_thinking: settings.preserve},
  };
  if (conversation.system.trim() !== '') {
    body.messages.unshift({role: 'system', content: conversation.system});
  }
  for (const name of Object.keys(kNumbers)) {
    const {value} = parseNumber(name, settings[name]);
    if (value !== undefined) {
      body[name] = value;
    }
  }
  const tools = parseTools(conversation.tools).value ?? [];
  if (tools.length > 0) {
    body.tools = tools;
  }
  if (continuing) {
    body.continue_final_message = true;
  }
  return body;
}

// Adds what a chunk brings to an answer; `run` holds the clock of the request. Returns whether text came.
function takeChunk(message, run, chunk) {
  const choice = chunk.choices?.[0];
  const delta = choice?.delta ?? {};
  const reasoning = delta.reasoning_content ?? delta.reasoning ?? '';
  const text = typeof delta.content === 'string' ? delta.content : '';
  const now = performance.now();
  message.reasoning += reasoning;
  message.content += text;
  for (const part of delta.tool_calls ?? []) {
    const call = (message.calls[part.index ?? 0] ??= {id: '', name: '', arguments: ''});
    call.id ||= part.id ?? '';
    call.name += part.function?.name ?? '';
    call.arguments += part.function?.arguments ?? '';
  }
  const came = reasoning !== '' || text !== '' || (delta.tool_calls?.length ?? 0) > 0;
  if (came) {
    run.first ??= now;
    run.last = now;
    run.pieces += 1;
    if (reasoning === '' && message.reasoning !== '' && message.thought === undefined) {
      message.thought = (now - run.first) / 1000;
    }
  }
  message.finish = choice?.finish_reason ?? message.finish;
  run.usage = chunk.usage ?? run.usage;
  run.timings = chunk.timings ?? run.timings;
  return came;
}

// What an answer cost: the server's own clock where it gives one, else this page's.
function statsOf(run) {
  const {usage, timings} = run;
  const seconds = run.first === undefined ? 0 : (run.last - run.first) / 1000;
  const tokens = usage?.completion_tokens;
  const measured = tokens > 1 && seconds > 0.05 ? (tokens - 1) / seconds : null;
  return {
    tokens: tokens ?? null,
    thinking: usage?.completion_tokens_details?.reasoning_tokens ?? 0,
    prompt: usage?.prompt_tokens ?? null,
    cached: usage?.prompt_tokens_details?.cached_tokens ?? 0,
    total: usage?.total_tokens ?? null,
    wait: run.first === undefined ? null : (run.first - run.began) / 1000,
    rate: timings?.predicted_per_second > 0 ? timings.predicted_per_second : measured,
  };
}
