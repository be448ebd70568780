// Finds strings, comments, numbers and keywords in code of any common language.

const DOUBLE = String.raw`"(?:\\.|[^"\\\n]){0,2000}"`;
const STRINGS = String.raw`"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|` +
  DOUBLE + String.raw`|'(?:\\.|[^'\\\n]){0,2000}'|` + "`(?:\\\\[^]|[^`\\\\])*(?:`|$)";
const NUMBERS = String.raw`\b\d[\w.]*`;
const WORDS = String.raw`[A-Za-z_$][\w$]*`;
const COMMENTS = {
  hash: "#.*",
  dash: "--.*",
  slash: String.raw`//.*|/\*[^]*?(?:\*/|$)`,
  markup: "<!--[^]*?(?:-->|$)",
};
const STYLES = {
  hash: "python py bash sh shell zsh console ruby rb yaml yml toml ini r perl make makefile " +
    "dockerfile elixir ex julia nix conf",
  dash: "sql lua haskell hs elm ada",
  markup: "html xml svg markdown md",
  none: "text txt plain output diff",
};
const KEYWORDS = new Set((
  "abstract and as assert async await begin bool boolean break case catch char class const " +
  "continue def default del delete do double elif else elseif elsif end enum except export " +
  "extends extern extension false False fi final finally float fn for foreach from func function " +
  "global go goto guard if impl implements import in include instanceof int interface is lambda " +
  "let local long loop match mod module mut namespace new nil None nonlocal not null of or " +
  "override package pass private protected protocol pub public raise repeat require rescue return " +
  "self short static str string struct super switch template then this throw throws trait true " +
  "True try type typeof typename undefined union unless unsigned until use using val var virtual " +
  "void when where while with yield " +
  "select insert update create table values set into join on group by order having limit union all " +
  "distinct drop alter index primary key exists between like"
).split(" "));
const SQL = new Set(["sql"]);

function styleOf(language) {
  const has = (style) => STYLES[style].split(" ").includes(language);
  return Object.keys(STYLES).find(has) ?? "slash";
}

// Yields [start, end, kind] of the parts with a colour, in order.
export function* highlights(code, language) {
  const name = language.toLowerCase();
  const style = styleOf(name);
  if (style === "none") return;
  const pattern = new RegExp(
    `(?<comment>${COMMENTS[style]})|(?<string>${style === "markup" ? DOUBLE : STRINGS})|(?<number>${NUMBERS})|(?<word>${WORDS})`,
    "g");
  for (const match of code.matchAll(pattern)) {
    const end = match.index + match[0].length;
    const { comment, string, number, word } = match.groups;
    if (comment !== undefined) yield [match.index, end, "comment"];
    else if (string !== undefined) yield [match.index, end, "string"];
    else if (number !== undefined) yield [match.index, end, "number"];
    else if (KEYWORDS.has(SQL.has(name) ? word.toLowerCase() : word)) {
      yield [match.index, end, "keyword"];
    }
  }
}
