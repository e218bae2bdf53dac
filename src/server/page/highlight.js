// Colours for code: comments, strings, numbers, keywords and calls, by one regular expression per language. Whatever
// it takes for what, the text stays the same.

const kWords = {
  c: 'alignas alignof auto bool break case catch char class co_await co_return co_yield concept const consteval constexpr ' +
      'const_cast continue decltype default delete do double dynamic_cast else enum explicit export extern false final float ' +
      'for friend goto if inline int long mutable namespace new noexcept nullptr operator override private protected public ' +
      'register requires return short signed sizeof static static_cast struct switch template this throw true try typedef ' +
      'typename union unsigned using virtual void volatile while NULL',
  java: 'abstract as async await base bool boolean break byte case catch char class const continue data default delegate do ' +
      'double else enum extends false final finally float for foreach fun if implements import in instanceof int interface ' +
      'internal is let long namespace new null object open out override package private protected public record ref return ' +
      'sealed short static string struct super switch this throw throws true try using val var virtual void when where while',
  js: 'abstract any as async await boolean break case catch class const continue debugger default delete do else enum export ' +
      'extends false finally for from function get if implements import in instanceof interface let new null number of ' +
      'private protected public readonly return set static string super switch this throw true try type typeof undefined var ' +
      'void while with yield',
  python: 'False None True and as assert async await break case class continue def del elif else except finally for from ' +
      'global if import in is lambda match nonlocal not or pass raise return self try while with yield',
  rust: 'as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut ' +
      'pub ref return self Self static struct super trait true type unsafe use where while bool char f32 f64 i8 i16 i32 i64 ' +
      'isize str u8 u16 u32 u64 usize String Vec Option Result',
  go: 'break case chan const continue default defer else fallthrough false for func go goto if import interface iota map nil ' +
      'package range return select struct switch true type var bool byte error float64 int int64 rune string uint',
  shell: 'if then else elif fi for while until do done case esac in function return local export readonly set unset shift exit ' +
      'trap source echo cd sudo',
  sql: 'select from where and or not in is null insert into values update set delete create table view index drop alter add ' +
      'primary key foreign references join left right inner outer full cross on as group by order having limit offset union ' +
      'all distinct case when then else end between like exists with recursive returning asc desc default true false',
  ruby: 'alias and begin break case class def do else elsif end ensure false for if in module next nil not or redo rescue retry ' +
      'return self super then true undef unless until when while yield require attr_accessor local function repeat',
  data: 'true false null yes no on off',
};

const kSlash = '//[^\\n]*|/\\*[\\s\\S]*?(?:\\*/|$)';
const kHash = '#[^\\n]*';
const kDashes = '--[^\\n]*';
const kQuoted = '"(?:[^"\\\\\\n]|\\\\[\\s\\S])*"?|\'(?:[^\'\\\\\\n]|\\\\[\\s\\S])*\'?';
const kTicked = '`(?:[^`\\\\]|\\\\[\\s\\S])*`?';
const kTripled = '"""[\\s\\S]*?(?:"""|$)|\'\'\'[\\s\\S]*?(?:\'\'\'|$)';

const kFamilies = [
  {names: 'c h cc cpp cxx hpp c++ cuda cu metal objc glsl', words: 'c', comment: kSlash, string: kQuoted},
  {names: 'java kotlin kt cs csharp c# scala dart swift groovy php', words: 'java', comment: kSlash, string: `${kTripled}|${kQuoted}`},
  {names: 'js javascript mjs jsx ts typescript tsx', words: 'js', comment: kSlash, string: `${kTicked}|${kQuoted}`},
  {names: 'py python py3 python3 starlark', words: 'python', comment: kHash, string: `${kTripled}|${kQuoted}`},
  {names: 'rs rust', words: 'rust', comment: kSlash, string: '"(?:[^"\\\\]|\\\\[\\s\\S])*"?|\'(?:[^\'\\\\\\n]|\\\\.)\''},
  {names: 'go golang', words: 'go', comment: kSlash, string: `${kTicked}|${kQuoted}`},
  {names: 'sh bash shell zsh console dockerfile docker make makefile', words: 'shell', comment: '(?<![^\\s])#[^\\n]*', string: '"(?:[^"\\\\]|\\\\[\\s\\S])*"?|\'[^\']*\'?'},
  {names: 'sql postgresql mysql sqlite', words: 'sql', comment: `${kDashes}|/\\*[\\s\\S]*?(?:\\*/|$)`, string: '\'[^\']*\'?|"[^"]*"?', anyCase: true},
  {names: 'rb ruby', words: 'ruby', comment: kHash, string: kQuoted},
  {names: 'lua', words: 'ruby', comment: kDashes, string: kQuoted},
  {names: 'json jsonc json5 yaml yml toml ini conf', words: 'data', comment: `(?<![^\\s])#[^\\n]*|(?<![^\\s])//[^\\n]*`, string: kQuoted},
  {names: 'html xml svg', words: 'data', comment: '<!--[\\s\\S]*?(?:-->|$)', string: '"[^"]*"?|\'[^\'\\n]*\'', tags: true},
  {names: 'css scss less', words: 'data', comment: kSlash, string: kQuoted},
];

const compiledFamilies = new Map();

function familyOf(language) {
  const name = language.toLowerCase();
  if (!compiledFamilies.has(name)) {
    const family = kFamilies.find((candidate) => candidate.names.split(' ').includes(name));
    compiledFamilies.set(name, family === undefined ? null : {
      words: new Set(kWords[family.words].split(' ')),
      anyCase: family.anyCase === true,
      pattern: new RegExp(
          `(?<comment>${family.comment})|(?<string>${family.string})|` +
          (family.tags ? '(?<keyword></?[A-Za-z][\\w:-]*|/?>)|' : '') +
          '(?<number>\\b(?:0[xXbo][\\da-fA-F_]+|\\d[\\d_]*(?:\\.\\d+)?(?:[eE][+-]?\\d+)?))|(?<word>[A-Za-z_$][\\w$]*)(?<call>(?=\\())?', 'g'),
    });
  }
  return compiledFamilies.get(name);
}

// The nodes of a code block's text.
function highlight(text, language) {
  const family = familyOf(language);
  if (family === null) {
    return [document.createTextNode(text)];
  }
  const nodes = [];
  let plain = 0;
  for (const match of text.matchAll(family.pattern)) {
    const {comment, string, number, word, keyword, call} = match.groups;
    const known = word !== undefined && family.words.has(family.anyCase ? word.toLowerCase() : word);
    const kind = comment !== undefined ? 'comment' : string !== undefined ? 'string' : number !== undefined ? 'number' :
        known || keyword !== undefined ? 'keyword' : call !== undefined ? 'call' : null;
    if (kind !== null) {
      nodes.push(document.createTextNode(text.slice(plain, match.index)), make('span', {class: `t-${kind}`}, match[0]));
      plain = match.index + match[0].length;
    }
  }
  nodes.push(document.createTextNode(text.slice(plain)));
  return nodes;
}
