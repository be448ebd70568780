// Shows Markdown as nodes of the page. The text of a model only ever becomes text nodes.
//
// A piece is {text, at}: characters, and where each of them is in the source. Colours know by that
// place which pass produced a character. HTML in the source stays text, and no picture is loaded.

import { highlights } from "./highlight.js";

const DEPTH = 12; // of quotes, lists and emphasis inside each other; deeper ones are plain text
const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)/;
const TABLE_RULE = /^[ |:-]+$/;
const SCHEMES = ["http:", "https:", "mailto:"];

// Shows a text in an element, whose children stay as they are where the source is the same.
export class MarkdownView {
  #element;
  #keys = [];

  constructor(element) {
    this.#element = element;
  }

  show(source, colours = null) {
    const blocks = blocksOf(linesOf(source));
    const keys = blocks.map(({ lines }) => {
      const start = lines[0].at;
      const last = lines.at(-1);
      const text = source.slice(start, last.at + last.text.length);
      return `${colours ? "coloured" : "plain"} ${start} ${text}`;
    });
    let same = 0;
    while (same < keys.length && keys[same] === this.#keys[same]) same += 1;
    while (this.#element.childNodes.length > same) this.#element.lastChild.remove();
    blocks.slice(same).forEach((block) => this.#element.append(blockNode(block, colours, 0)));
    this.#keys = keys;
  }
}

// Which pass produced a character of a text; `name` tells about a pass.
export class Colours {
  constructor(spans, name) {
    this.name = name;
    this.#spans = spans;
  }

  #spans;

  // [pass, end of its run]
  runAt(place) {
    let low = 0;
    let high = this.#spans.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#spans[middle][0] > place) high = middle;
      else low = middle + 1;
    }
    const [end, pass] = this.#spans[low] ?? [0, 0];
    return [pass, end > place ? end : Infinity];
  }
}

// Blocks

function linesOf(source) {
  const lines = [];
  let at = 0;
  for (const text of source.split("\n")) {
    lines.push({ text, at });
    at += text.length + 1;
  }
  return lines;
}

const blank = (line) => !line.text.trim();
const cut = (line, count) => ({ text: line.text.slice(count), at: line.at + count });
const indent = (line) => line.text.length - line.text.trimStart().length;

// Groups lines as {kind, lines, ...}; blank lines between the groups are dropped.
function blocksOf(lines) {
  const blocks = [];
  let start = 0;
  while (start < lines.length) {
    if (blank(lines[start])) {
      start += 1;
      continue;
    }
    const block = blockAt(lines, start);
    blocks.push(block);
    start += block.lines.length;
  }
  return blocks;
}

function blockAt(lines, start) {
  const { text } = lines[start];
  const until = (isEnd, from = start + 1) => {
    let end = from;
    while (end < lines.length && !isEnd(lines[end], end)) end += 1;
    return lines.slice(start, end);
  };
  const fence = FENCE.exec(text);
  if (fence) {
    const closes = (line) => {
      const trimmed = line.text.trim();
      return indent(line) < 4 && trimmed.length >= fence[1].length &&
        trimmed === fence[1][0].repeat(trimmed.length);
    };
    const group = until(closes);
    const isClosed = start + group.length < lines.length;
    if (isClosed) group.push(lines[start + group.length]);
    return { kind: "code", lines: group, language: fence[2].trim().split(/\s/)[0], isClosed };
  }
  if (HEADING.test(text)) return { kind: "heading", lines: [lines[start]] };
  if (RULE.test(text)) return { kind: "rule", lines: [lines[start]] };
  if (QUOTE.test(text)) {
    return { kind: "quote", lines: until((line) => !QUOTE.test(line.text)) };
  }
  const item = ITEM.exec(text);
  if (item) return { kind: "list", lines: listLines(lines, start, item) };
  if (startsTable(lines, start)) {
    const ends = (line) => blank(line) || !line.text.includes("|");
    return { kind: "table", lines: until(ends, start + 2) };
  }
  const ends = (line, index) => blank(line) || interrupts(line) || startsTable(lines, index);
  return { kind: "paragraph", lines: until(ends) };
}

function interrupts(line) {
  const item = ITEM.exec(line.text);
  return FENCE.test(line.text) || HEADING.test(line.text) || RULE.test(line.text) ||
    QUOTE.test(line.text) || (item?.[3] && (!/\d/.test(item[2]) || parseInt(item[2]) === 1));
}

function startsTable(lines, start) {
  const rule = lines[start + 1]?.text ?? "";
  return lines[start].text.includes("|") && TABLE_RULE.test(rule) &&
    rule.includes("|") && rule.includes("-");
}

const kindOfItem = (marker) => marker.slice(-1); // one list has one bullet, or "." or ")"

function listLines(lines, start, first) {
  let end = start + 1;
  let wasBlank = false;
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    if (blank(line)) {
      wasBlank = true;
      continue;
    }
    const item = ITEM.exec(line.text);
    const isNext = item && kindOfItem(item[2]) === kindOfItem(first[2]) && !RULE.test(line.text);
    const isInside = indent(line) >= first[1].length + 2;
    if (!isNext && !isInside && (wasBlank || item || interrupts(line))) break;
    wasBlank = false;
  }
  while (blank(lines[end - 1])) end -= 1;
  return lines.slice(start, end);
}

function blockNode(block, colours, depth) {
  const { kind, lines } = block;
  const inline = (node, piece) => addInline(node, piece, colours, depth);
  if (kind === "code") return codeNode(block, colours);
  if (kind === "rule") return make("hr");
  if (kind === "heading") {
    const [mark, hashes] = HEADING.exec(lines[0].text);
    const node = make(`h${Math.min(hashes.length + 2, 6)}`);
    const piece = pieceOf([cut(lines[0], mark.length)]);
    inline(node, slice(piece, 0, piece.text.trimEnd().length));
    return node;
  }
  if (depth < DEPTH && kind === "quote") {
    const inner = lines.map((line) => cut(line, QUOTE.exec(line.text)[0].length));
    return addBlocks(make("blockquote"), inner, colours, depth);
  }
  if (depth < DEPTH && kind === "list") return listNode(lines, colours, depth);
  if (kind === "table") return tableNode(lines, inline);
  const node = make("p");
  inline(node, pieceOf(lines.map((line) => cut(line, indent(line)))));
  return node;
}

function addBlocks(node, lines, colours, depth) {
  blocksOf(lines).forEach((block) => node.append(blockNode(block, colours, depth + 1)));
  return node;
}

function listNode(lines, colours, depth) {
  const first = ITEM.exec(lines[0].text);
  const isOrdered = /\d/.test(first[2]);
  const node = make(isOrdered ? "ol" : "ul");
  if (isOrdered && parseInt(first[2]) !== 1) node.start = parseInt(first[2]);
  const items = [];
  let inside = 0; // where the text of the item begins
  for (const line of lines) {
    const item = ITEM.exec(line.text);
    const isNext = item && (!items.length || item[1].length < inside) &&
      kindOfItem(item[2]) === kindOfItem(first[2]);
    if (isNext) {
      inside = item[1].length + item[2].length + Math.min(item[3].length || 1, 4);
      items.push([cut(line, Math.min(inside, line.text.length))]);
    } else {
      items.at(-1).push(cut(line, Math.min(indent(line), inside)));
    }
  }
  const isLoose = items.some((item) => item.slice(0, -1).some(blank));
  for (const item of items) {
    const child = addBlocks(make("li"), item, colours, depth);
    const paragraph = child.firstChild;
    if (!isLoose && paragraph?.nodeName === "P") paragraph.replaceWith(...paragraph.childNodes);
    node.append(child);
  }
  return node;
}

function codeNode({ lines, language, isClosed }, colours) {
  const space = indent(lines[0]);
  const inner = lines.slice(1, isClosed ? -1 : undefined);
  const piece = pieceOf(inner.map((line) => cut(line, Math.min(indent(line), space))));
  const code = make("code");
  let done = 0;
  for (const [start, end, kind] of highlights(piece.text, language)) {
    put(code, slice(piece, done, start), colours);
    put(code.appendChild(make("span", kind)), slice(piece, start, end), colours);
    done = end;
  }
  put(code, slice(piece, done), colours);
  const head = make("div", "code-head");
  head.append(language || "text", copyButton("code"));
  const pre = make("pre");
  pre.tabIndex = 0; // so that keys can scroll it
  pre.append(code);
  const node = make("div", "code");
  node.append(head, pre);
  return node;
}

export function copyButton(what) {
  const button = make("button", "quiet");
  button.textContent = "Copy";
  button.dataset.copy = what;
  return button;
}

function tableNode(lines, inline) {
  const rows = [lines[0], ...lines.slice(2)].map((line) => cellsOf(pieceOf([line])));
  const sides = cellsOf(pieceOf([lines[1]])).map(({ text }) => {
    if (!text.endsWith(":")) return "";
    return text.startsWith(":") ? "centre" : "right";
  });
  const table = make("table");
  rows.forEach((row, index) => {
    const node = table.appendChild(make("tr"));
    sides.forEach((side, column) => {
      const cell = node.appendChild(make(index ? "td" : "th", side));
      if (row[column]) inline(cell, row[column]);
    });
  });
  const scroll = make("div", "table");
  scroll.append(table);
  return scroll;
}

function cellsOf(piece) {
  const bare = withoutCode(piece.text).bare;
  const cells = [];
  let start = 0;
  for (let end = 0; end <= bare.length; end += 1) {
    if (end < bare.length && bare[end] !== "|") continue;
    const { text } = slice(piece, start, end);
    const from = start + text.length - text.trimStart().length;
    cells.push(slice(piece, from, from + text.trim().length));
    start = end + 1;
  }
  if (bare.trimStart().startsWith("|")) cells.shift();
  if (bare.trimEnd().endsWith("|")) cells.pop();
  return cells;
}

// Inside of a block

function pieceOf(lines) {
  const at = [];
  for (const line of lines) {
    for (let index = 0; index <= line.text.length; index += 1) at.push(line.at + index);
  }
  at.pop(); // the line break after the last line
  return { text: lines.map((line) => line.text).join("\n"), at };
}

const slice = ({ text, at }, start, end) => (
  { text: text.slice(start, end), at: at.slice(start, end) });

const HIDDEN = "\u0001"; // neither a mark nor a space

// codes: [start, end, marks] of the code spans. bare: the text with them and escapes hidden.
function withoutCode(text) {
  const codes = [];
  const parts = [];
  let done = 0;
  const hide = (start, end) => {
    parts.push(text.slice(done, start), HIDDEN.repeat(end - start));
    done = end;
  };
  const runs = [...text.matchAll(/\\[!-/:-@[-`{-~]|`+/g)];
  const missing = new Set(); // lengths of which no run follows
  for (let index = 0; index < runs.length; index += 1) {
    const [mark] = runs[index];
    const start = runs[index].index;
    if (start < done) continue;
    if (mark[0] === "\\") {
      hide(start, start + 2);
      continue;
    }
    if (missing.has(mark.length)) continue;
    let next = index + 1;
    while (next < runs.length && runs[next][0] !== mark) next += 1;
    if (next < runs.length) {
      const end = runs[next].index + mark.length;
      codes.push([start, end, mark.length]);
      hide(start, end);
    } else {
      missing.add(mark.length);
    }
  }
  parts.push(text.slice(done));
  return { codes, bare: parts.join("") };
}

const MARK = /\u0001+|\*\*|__|~~|\*|_|!?\[|<?https?:\/\//g;
const TARGET = /\]\([ \n]?<?([^\s<>()]{0,2000}(?:\([^\s<>()]{0,200}\)[^\s<>()]{0,200}){0,5})>?(?:[ \n]+"[^"\n]{0,300}")?[ \n]?\)/y;
const ADDRESS = /https?:\/\/[^\s<>"'`\u0001]{1,2000}/y;
const TAGS = { "**": "strong", __: "strong", "*": "em", _: "em", "~~": "del" };

function addInline(node, piece, colours, depth) {
  const { text } = piece;
  const { codes, bare } = withoutCode(text);
  const codeAt = new Map(codes.map((code) => [code[0], code]));
  const missing = new Set(); // marks that no longer have a closing one
  const plain = (from, to) => put(node, slice(piece, from, to), colours);
  const within = (tag, from, to) => {
    const child = node.appendChild(make(tag));
    if (depth < DEPTH) addInline(child, slice(piece, from, to), colours, depth + 1);
    else put(child, slice(piece, from, to), colours);
    return child;
  };
  let done = 0;
  for (const { 0: mark, index: start } of bare.matchAll(MARK)) {
    if (start < done) continue;
    if (mark[0] === HIDDEN) {
      for (let place = start; place < start + mark.length;) {
        plain(done, place);
        const code = codeAt.get(place);
        if (code) {
          put(node.appendChild(make("code")), trimmedCode(piece, code), colours);
          done = code[1];
        } else {
          done = place + 1; // the backslash
          plain(done, place + 2);
          done = place + 2;
        }
        place = done;
      }
      continue;
    }
    if (mark.endsWith("[")) {
      const close = bare.slice(start, start + 500).indexOf("](") + start;
      TARGET.lastIndex = close;
      const target = close > start && TARGET.exec(text);
      if (!target) continue;
      plain(done, start);
      const from = start + mark.length;
      asLink(within("span", from, close), target[1]);
      done = close + target[0].length;
      continue;
    }
    if (mark.endsWith("://")) {
      const from = start + (mark[0] === "<" ? 1 : 0);
      ADDRESS.lastIndex = from;
      const address = ADDRESS.exec(bare)?.[0].replace(/[.,;:!?)\]*_~]+$/, "");
      if (!address) continue;
      plain(done, start);
      const label = node.appendChild(make("span"));
      put(label, slice(piece, from, from + address.length), colours);
      asLink(label, address);
      done = from + address.length;
      if (from > start && text[done] === ">") done += 1;
      continue;
    }
    if (missing.has(mark) || !opens(bare, start, mark)) continue;
    const close = closingOf(bare, start + mark.length, mark);
    if (close < 0) {
      missing.add(mark);
      continue;
    }
    plain(done, start);
    within(TAGS[mark], start + mark.length, close);
    done = close + mark.length;
  }
  plain(done);
}

function trimmedCode(piece, [start, end, marks]) {
  const code = slice(piece, start + marks, end - marks);
  const { text } = code;
  const padded = text.startsWith(" ") && text.endsWith(" ") && text.trim();
  return padded ? slice(code, 1, -1) : code;
}

const isWord = (character) => /[\p{L}\p{N}]/u.test(character ?? "");
const isSpace = (character) => character === undefined || /\s/.test(character);

function opens(bare, start, mark) {
  const isInWord = mark[0] === "_" && isWord(bare[start - 1]);
  return !isSpace(bare[start + mark.length]) && !isInWord;
}

// Where the closing mark begins; in a run of three or more it is the end of the run.
function closingOf(bare, from, mark) {
  let at = bare.indexOf(mark, from + 1);
  while (at >= 0) {
    let end = at + 1;
    while (bare[end] === mark[0]) end += 1;
    const isOfMark = end - at === mark.length || end - at > 2;
    const isInWord = mark[0] === "_" && isWord(bare[end]);
    if (isOfMark && !isInWord && !isSpace(bare[at - 1])) return end - mark.length;
    at = bare.indexOf(mark, end);
  }
  return -1;
}

// Makes a link of a span if its target is a page or a mail address.
function asLink(span, target) {
  let url;
  try {
    url = new URL(target);
  } catch {
    return;
  }
  if (!SCHEMES.includes(url.protocol)) return;
  const link = make("a");
  link.href = url.href;
  link.target = "_blank";
  link.rel = "noopener noreferrer";
  link.append(...span.childNodes);
  span.replaceWith(link);
}

// Adds text, in a span for each run of one pass if there are colours.
function put(node, { text, at }, colours) {
  if (!text) return;
  if (!colours) {
    node.append(text);
    return;
  }
  let start = 0;
  while (start < text.length) {
    const [pass, runEnd] = colours.runAt(at[start]);
    let end = start + 1;
    while (end < text.length && at[end] < runEnd) end += 1;
    const span = node.appendChild(make("span", `pass pass-${pass % 6}`));
    span.title = colours.name(pass);
    span.append(text.slice(start, end));
    start = end;
  }
}

export function make(tag, className = "") {
  const node = document.createElement(tag);
  if (className) node.className = className;
  return node;
}
