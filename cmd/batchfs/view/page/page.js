// The page of batchfs view. Each panel shows the rows of one batch of a sequence. Only visible rows
// are requested and drawn. The text of tokens is always inserted as text, never as HTML.

const $ = id => document.getElementById(id)
const LINE = 22 // pixels
const CHUNK = 32 // rows per request
const PIECE = 4096 // tokens of an open row to draw at a time
const TALLEST = 1e7 // pixels; browsers limit the height of an element
const state = { k: 0, lines: 0, panels: [], active: null, at: null } // at: the selected token, {panel, j, i}
const answers = new Map() // by URL, least recently used first
let sequences = []

const narrow = matchMedia("(max-width: 760px)")
const count = n => n.toLocaleString("en")
const button = (text, onclick) => Object.assign(make("button", "", text), { onclick })

// ask returns the answer to a request, which it sends unless it did before. Once the answer
// arrives, it gets a value or an error, and the page is redrawn.
function ask(path, params) {
  const url = `${path}?${new URLSearchParams(params)}`
  let answer = answers.get(url)
  if (!answer) {
    answer = {}
    const read = async r => r.ok ? { value: await r.json() } : { error: await r.text() }
    answer.done = fetch(url).then(read).catch(e => ({ error: `${e}: is batchfs view still running?` })).then(got => { redrawSoon(); return Object.assign(answer, got) })
  }
  answers.delete(url)
  answers.set(url, answer)
  if (answers.size > 150) answers.delete(answers.keys().next().value)
  return answer
}

function make(tag, className, ...children) {
  const e = Object.assign(document.createElement(tag), { className })
  e.append(...children)
  return e
}

// spell appends a text to an element. It shows control and format characters as numbers, and so
// also bytes that are not UTF-8, which are sent as U+DC80 to U+DCFF.
function spell(parent, text, breaks) {
  const hex = n => n.toString(16).toUpperCase().padStart(n < 256 ? 2 : 4, "0")
  for (const [part, odd] of text.matchAll(/([\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}\p{Cn}])|[^\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}\p{Cn}]+/gu)) {
    const code = part.codePointAt(0)
    if (!odd) parent.append(part)
    else if (odd === "\n" || odd === "\t") parent.append(make("span", "white", odd === "\t" ? "⇥" : "↵"), odd === "\t" || breaks ? odd : "")
    else parent.append(make("span", "chip", code < 256 ? hex(code) : code >> 8 === 0xdc ? hex(code & 255) : `U+${hex(code)}`))
  }
  return parent
}

const views = {
  bool: Uint8Array, uint8: Uint8Array, int8: Int8Array, uint16: Uint16Array, int16: Int16Array, uint32: Uint32Array, int32: Int32Array,
  uint64: BigUint64Array, int64: BigInt64Array, float16: globalThis.Float16Array ?? Uint16Array, bfloat16: Uint16Array, float32: Float32Array, float64: Float64Array,
}
const digits = { float16: 4, bfloat16: 3, float32: 7, float64: 15 }

// numbersOf decodes an array sent in base64. Integers that JavaScript would round stay BigInts.
function numbersOf(dtype, base64) {
  let all = new views[dtype](Uint8Array.from(atob(base64 ?? ""), c => c.charCodeAt(0)).buffer)
  if (dtype === "bfloat16") all = new Float32Array(Uint32Array.from(all, bits => bits << 16).buffer)
  return Array.from(all, n => dtype in digits ? Number(n.toPrecision(digits[dtype])) : Number.isSafeInteger(Number(n)) ? Number(n) : n)
}

class Panel {
  constructor([s, rank]) {
    this.el = $("panel").content.firstElementChild.cloneNode(true)
    for (const name of ["split", "rank", "facts", "list", "rows"]) this["$" + name] = this.el.querySelector("." + name)
    this.drawn = new Map() // by row: {el, key}
    this.$split.append(...sequences.map((q, i) => new Option(q.name, i)))
    this.$split.onchange = () => this.use(+this.$split.value)
    this.$rank.onchange = () => this.use(this.s, +this.$rank.value)
    this.$list.onscroll = this.$list.onpointerleave = redrawSoon
    this.el.addEventListener("focusin", () => { state.active = this })
    // under returns an event handler that calls use with the row and the token under the pointer.
    const under = use => e => {
      const [j, i] = [".row", ".token"].map((name, n) => e.target.closest(name)?.dataset["ji"[n]])
      if (j) use(+j, +(i ?? 0), i)
    }
    this.$list.onpointermove = under((j, i, on) => { if (on) showToken(this, j, i) })
    this.$list.onclick = under((j, i) => this.go(j, i, true))
    this.$list.ondblclick = under(j => this.toggle(j))
    new ResizeObserver(redrawSoon).observe(this.$list)
    this.use(s, rank)
  }

  // use shows a sequence as seen by a rank. open is the row that is shown in full, if any: its
  // number j, its first drawn token at, and its height in pixels.
  use(s, rank = sequences[s].info.rank) {
    const q = sequences[s].info
    Object.assign(this, { s, rank, info: q, name: sequences[s].name, text: sequences[s].text, eot: q.eot ?? sequences[s].eot, open: null })
    this.$split.value = s
    this.$rank.hidden = q.world === 1
    this.$rank.replaceChildren(...Array.from({ length: Math.min(q.world, 4096) }, (_, r) => new Option(`rank ${r} of ${q.world}`, r)))
    this.$rank.value = rank
    this.tokens = q.layout !== "rows"
    this.length = this.tokens ? q.block_size + 1 : q.arrays[0].shape.slice(1).reduce((a, b) => a * b, 1)
    this.masks = q.arrays.filter(a => a.files && /mask/.test(a.name) && a.shape.length === 2)
    const kinds = Object.entries(Object.groupBy(q.arrays, a => `${a.dtype} (${a.shape.join(", ")})`)).map(([kind, all]) => [all.map(a => a.name).join(", "), kind])
    const facts = [["order", q.order], ["seed", q.seed], ...kinds, [this.tokens ? "tokens" : "rows", count(q.tokens)], ["batches per epoch", count(q.batches_per_epoch)],
      ...this.tokens && !this.text ? [["no text:", "--by names the tokenizer"]] : []]
    this.$facts.replaceChildren(...facts.map(([name, value]) => make("span", "", `${name} `, make("b", "", String(value)))))
    this.$facts.title = `${q.sequence}\nfingerprint ${q.fingerprint}`
    changed()
  }

  // All rows have the same height, except for an open one. If all rows together are taller than
  // TALLEST, scrolling by one pixel moves the rows by several.
  get height() { return state.lines * LINE + (this.tokens ? 30 : 20) + (narrow.matches ? 18 : 0) }
  get width() { return Math.max(20, Math.floor((this.$list.clientWidth - (narrow.matches ? 24 : 182)) / 7.83)) }
  get total() { return this.info.batch_size * this.height + this.extra }
  get extra() { return this.open ? this.open.height - this.height : 0 }
  get scale() { const seen = this.$list.clientHeight; return this.total > TALLEST ? (this.total - seen) / (TALLEST - seen) : 1 }
  get y() { return this.$list.scrollTop * this.scale }
  top(j) { return j * this.height + (this.open && j > this.open.j ? this.extra : 0) }
  rowAt(y) {
    if (this.open && y > this.top(this.open.j)) y = Math.max(this.top(this.open.j), y - this.extra)
    return Math.max(0, Math.min(this.info.batch_size - 1, Math.floor(y / this.height)))
  }

  // rowsOf returns the answer that contains a row. For an open row, it includes one more token
  // before the drawn ones, to tell whether the first one is masked.
  rowsOf(j, k = state.k) {
    const open = this.open?.j === j
    const p = open ? { from: j, n: 1, at: Math.max(0, this.open.at - 1), len: PIECE + 1 } : { from: j - j % CHUNK, n: CHUNK, at: 0, len: this.columns }
    const answer = ask("rows", { s: this.s, rank: this.rank, k, ...p })
    if (!answer.read) answer.value?.forEach(r => this.read(r, p.at, p.len))
    answer.read ||= answer.value
    return { answer, r: answer.value?.[j - p.from] }
  }

  // read decodes the arrays of a row, and splits a window into segments where documents end.
  read(r, at, len) {
    for (const a of this.info.arrays) r.arrays[a.name] = numbersOf(a.dtype, r.arrays[a.name])
    const { y, positions } = r.arrays, [s] = r.segments
    r.at = at
    r.ids = [...r.arrays[this.info.arrays[0].name]]
    if (y && at + len > this.info.block_size && y.at(-1) >= 0) r.ids.push(y.at(-1))
    const windows = this.tokens && (this.info.rows ?? "windows") === "windows"
    r.whole = !windows || at + r.ids.length >= this.length // whether all documents of the row are known
    r.end = this.tokens ? r.segments.at(-1).at + r.segments.at(-1).len : Infinity // index of the padding
    if (!windows) return
    const begins = [0, ...r.ids.keys().filter(n => n > 0 && (r.begins ? r.begins.includes(at + n) : positions ? positions[n] === 0 : r.ids[n - 1] === this.eot)).map(n => at + n)]
    r.segments = begins.map((i, n) => ({ ...s, at: i, start: s.start + i, len: (begins[n + 1] ?? s.len) - i, document: s.document < 0 || at > 0 ? -1 : n > 0 && r.begins ? r.numbers[n - 1] : s.document + n }))
  }

  // draw draws the visible rows. Rows of the previous batch stay visible, dimmed, until the answer
  // for the new batch arrives.
  draw() {
    this.chars = state.lines * this.width
    this.columns = Math.min(this.length, PIECE, Math.max(64, 2 ** Math.ceil(Math.log2(this.chars / 2))))
    this.$rows.style.height = `${Math.min(this.total, TALLEST)}px`
    this.$rows.style.setProperty("--lines", state.lines)
    const y = this.y, first = this.rowAt(y), last = this.rowAt(y + this.$list.clientHeight)
    let failed
    for (const [j, d] of this.drawn) if (j < first || j > last) d.el.remove(), this.drawn.delete(j)
    this.$rows.querySelector(".at")?.classList.remove("at")
    for (let j = first; j <= last; j++) {
      const { answer, r } = this.rowsOf(j), open = this.open?.j === j
      const key = [this.s, this.rank, state.k, this.chars, open && this.open.at, !r].join()
      let d = this.drawn.get(j)
      if (d?.key !== key && (r || !d)) {
        d?.el.remove()
        this.drawn.set(j, d = { key, el: r ? this.make(j, r, open) : make("div", "row") })
        this.$rows.append(d.el)
      }
      failed ||= answer.error
      if (r?.text && (d.unknown ??= r.text.some(t => /^\ufffd\d+$/.test(t)))) failed ||= "Some tokens are not in the vocabulary, so another tokenizer made them."
      d.el.classList.toggle("stale", !r)
      const here = state.at.panel === this && state.at.j === j, token = here && d.el.querySelector(`[data-i="${state.at.i}"]`)
      d.el.classList.toggle("here", here)
      token?.classList?.add("at")
      d.el.style.height = open ? "" : `${this.height}px`
      d.el.style.transform = `translateY(${this.top(j) - y + this.$list.scrollTop}px)`
      if (open && r && this.open.height !== d.el.offsetHeight) this.open.height = d.el.offsetHeight, redrawSoon()
      else if (r && token && open && state.at.follow) [d.el, token].forEach(e => e.scrollIntoView({ block: "nearest" })), state.at.follow = false
    }
    this.el.querySelector(".error").textContent = failed ?? ""
  }

  make(j, r, open) {
    const s = r.segments[0], file = make("span", "", s.file.split("/").slice(this.info.sources ? -2 : -1).join("/")), dot = make("i", "source")
    if (this.info.sources) file.prepend(dot, this.info.sources[r.source].name + (this.info.stages ? `, stage ${r.stage} ` : " "))
    dot.style.background = `oklch(68% .15 ${250 + 67 * r.source})`
    const from = make("div", "from", make("b", "", String(j), make("small", "", ` epoch ${r.epoch}`)), file, make("span", "", `from ${count(s.start)}`))
    if (s.document >= 0) from.append(make("span", "", r.segments.length > 1 ? `${r.segments.length}${r.whole ? "" : "+"} documents` : `document ${count(s.document)}`))
    const strip = make("div", "strip", ...r.segments.map(() => make("i", "")), make("i", "padding"))
    ;[...strip.children].forEach((e, n) => { e.style.flexGrow = n < r.segments.length ? r.segments[n].len : this.length - 1 - r.end })
    if (r.end >= this.length - 1) strip.lastChild.remove()
    strip.classList.toggle("plain", strip.children.length === 1 || !r.whole)
    const body = make("div", "body", ...this.tokens ? [strip] : [], this.line(r, open), ...open ? [this.numbers(r)] : [])
    const el = Object.assign(make("div", open ? "row open" : "row", from, body), { role: "listitem" })
    el.dataset.j = j
    return el
  }

  // masked reports whether the loss ignores token i as a target. The first token of a row is never
  // a target, and looks like the second.
  masked(r, i) {
    i = Math.max(i, 1)
    return r.arrays.y?.[i - 1 - r.at] < 0 || this.masks.some(a => r.arrays[a.name][i - (a.at === "x" ? 0 : 1) - r.at] === 0)
  }

  line(r, open) {
    const out = make("div", r.text ? "text" : "text number"), begins = new Map(r.segments.map(s => [s.at, s.document]))
    let chars = 0
    for (let n = open ? this.open.at - r.at : 0; n < r.ids.length; n++) {
      const i = r.at + n
      if (i >= r.end || !open && chars > this.chars) break
      if (i > 0 && begins.has(i)) out.append(make("span", "border", begins.get(i) < 0 ? "" : `document ${count(begins.get(i))}`))
      const token = make("span", `token t${i % 5}`), text = r.text ? r.text[n] : String(r.ids[n])
      token.dataset.i = i
      token.classList.toggle("masked", this.tokens && this.masked(r, i))
      out.append(spell(token, text.slice(0, 400), open))
      chars += r.text ? text.length : Math.max(8, text.length + 2)
    }
    if (!open && chars > this.chars) out.classList.add("more")
    else if (r.at + r.ids.length >= r.end && r.end < this.length - 1) out.append(make("span", "padding", `padding: ${count(this.length - 1 - r.end)}`))
    return out
  }

  // numbers returns the arrays of an open row, and buttons that lead to its other tokens.
  numbers(r) {
    const list = make("dl", "numbers"), { j, at } = this.open, end = Math.min(at + PIECE, this.length)
    for (const a of this.info.arrays)
      list.append(make("dt", "", `${a.name} ${a.dtype} (${a.shape.slice(1).join(", ")})`), make("dd", "", r.arrays[a.name].slice(0, 100).join(" ")))
    const pages = [button("‹", () => this.toggle(j, Math.max(0, at - PIECE))), " ", button("›", () => this.toggle(j, Math.min(end, this.length - 1)))]
    if (this.length > PIECE) list.append(make("dt", "", ...pages), make("dd", "", `${count(at)} to ${count(end - 1)} of ${count(this.length)}`))
    return list
  }

  // toggle opens a row at the piece with token i, or closes it.
  toggle(j, i) {
    const at = Math.floor((i ?? 0) / PIECE) * PIECE
    this.open = this.open?.j === j && i === undefined ? null : { j, at, height: this.height }
    this.go(j, i ?? (this.open ? state.at.i : 0))
  }

  // go selects a token, and scrolls to it unless still is set.
  go(j, i, still) {
    j = Math.max(0, Math.min(j, this.info.batch_size - 1))
    i = Math.max(0, Math.min(i, this.length - 1))
    state.at = { panel: this, j, i, follow: !still }
    if (this.open?.j === j && (i < this.open.at || i >= this.open.at + PIECE)) this.open.at = Math.floor(i / PIECE) * PIECE
    if (i > 0 && this.open?.j !== j && this.drawn.get(j)?.el.querySelector(`[data-i="${i}"]`) === null) return this.toggle(j, i)
    const top = this.top(j), behind = top + Math.min(this.open?.j === j ? this.open.height : this.height, this.$list.clientHeight)
    if (!still) this.$list.scrollTop = Math.min(top, Math.max(this.y, behind - this.$list.clientHeight)) / this.scale
    redrawSoon()
  }
}

// showToken shows the details of a token at the bottom of the page.
function showToken(panel, j, i) {
  const { r } = panel.rowsOf(j), q = panel.info, n = i - r?.at
  if (r?.ids[n] === undefined) return
  const part = (name, value, kind = "") => make("div", kind, make("small", "", name), value)
  const all = [make("div", "what", spell(make("span", `token t${i % 5}`), r.text ? r.text[n].slice(0, 200) || "…" : String(r.ids[n])))]
  const s = r.segments.findLast(s => s.at <= i), y = r.arrays.y?.[n], name = q.arrays[0].name
  if (panel.tokens) {
    all.push(part("token", String(r.ids[n])), part("at", i < q.block_size || name !== "x" ? `${name}[${j}, ${i}]` : `y[${j}, ${i - 1}]`))
    if (y !== undefined) all.push(part(panel.masked(r, i + 1) ? "target, masked" : "target", y < 0 ? "none" : make("span", "", `${y} `, spell(make("span", "soft"), r.text?.[n + 1]?.slice(0, 40) ?? ""))))
    if (i >= r.end) all.push(part("", "padding"))
    else all.push(s.inserted && i === s.at ? part("", "inserted bos") : part("position", count(s.start + i - s.at)), ...s.document >= 0 ? [part("document", count(s.document))] : [], ...s.id ? [part("id", s.id, "wide")] : [], part("file", s.file, "wide"))
  } else all.push(part("number", `${i} of ${name}[${j}]`), part("row", `${count(s.start)} of ${s.file}`, "wide"))
  for (const a of q.arrays.filter(a => a.shape.length < 3 && !["x", "y", "tokens", "rows", "cu_seqlens", "document_numbers"].includes(a.name))) {
    const value = r.arrays[a.name][a.shape.length > 1 ? n : 0]
    if (value !== undefined) all.push(part(a.name, String(value)))
  }
  $("token").replaceChildren(...all)
}

let waiting = 0
const redrawSoon = () => { waiting ||= requestAnimationFrame(draw) }

function draw() {
  waiting = 0
  const panel = state.panels[0]
  if (!panel) return
  const q = panel.info, epoch = state.k / q.batches_per_epoch, wide = panel.text && q.vocab_size > 300 ? 4.5 : 1.1 // characters of a token
  state.lines ||= Math.max(3, Math.min(6, Math.ceil(panel.length * wide / panel.width)))
  for (const p of state.panels) p.draw()
  showToken(state.at.panel, state.at.j, state.at.i)
  $("scrub").max = Math.max(q.steps - 1, state.k)
  $("scrub").value = state.k
  if (document.activeElement !== $("k")) $("k").value = state.k
  $("epochs").textContent = `epoch ${count(Math.floor(epoch))} · ${Math.floor(100 * (epoch % 1))}%`
  document.title = `batch ${state.k} · ${state.panels.map(p => p.name).join(" | ")} · batchfs`
}

let historyTimer // timer; browsers limit how often the address may change
function changed() {
  for (const [url, a] of answers) if (a.error) answers.delete(url)
  clearTimeout(historyTimer)
  historyTimer = setTimeout(() => {
    history.replaceState(null, "", `#${state.k}`)
    for (const p of state.panels) for (const k of [state.k + 1, state.k - 1]) if (k >= 0 && !p.open) p.rowsOf(p.rowAt(p.y), k)
  }, 200)
  redrawSoon()
}

function step(k) {
  state.k = Math.max(0, Math.min(k || 0, 2 ** 40 - 1))
  changed()
}

// showPanels shows one or two panels, each for a pair of a sequence and a rank.
function showPanels(...shown) {
  state.panels = shown.map(one => new Panel(one))
  state.active = state.panels[0]
  state.at = { panel: state.active, j: 0, i: 0 }
  state.lines = 0
  $("panels").replaceChildren(...state.panels.map(p => p.el))
  $("beside").setAttribute("aria-pressed", shown.length > 1)
  $("found").hidden = true
  $("text").placeholder = state.active.text ? "Search text, or @position" : "@position"
  state.active.$list.focus()
}

// toggleSideBySide switches between one panel and two. The second panel shows the next sequence, or
// another rank if there is only one.
function toggleSideBySide() {
  const [a, b] = state.panels, next = (a.s + 1) % sequences.length
  if (b) showPanels([a.s, a.rank])
  else if (!$("beside").hidden) showPanels([a.s, a.rank], [next, next === a.s ? (a.rank + 1) % a.info.world : undefined])
}

let searches = 0 // number of searches begun; a new one stops older ones

// search lists the occurrences of a text, or goes to a position.
async function search(text, from = 0) {
  const mine = ++searches, panel = state.active, position = text.match(/^@?\s*([\d,]+)$/)
  if (from === 0) $("hits").replaceChildren()
  $("found").hidden = false
  $("more").hidden = true
  $("status").textContent = ""
  if (position && (text.startsWith("@") || !panel.text)) return list(panel, { pos: +position[1].replaceAll(",", ""), before: "", after: "" }, "").click()
  for (let hits = 0; from < panel.info.tokens && hits < 20;) {
    $("status").textContent = `${Math.floor(100 * from / panel.info.tokens)}% searched`
    const { value, error } = await ask("search", { s: panel.s, text, from }).done
    if (mine !== searches) return
    if (error) return $("status").textContent = error
    value.hits.forEach(hit => list(panel, hit, text))
    hits += value.hits.length
    from = value.next
  }
  const part = from < panel.info.tokens ? ` in the first ${(100 * from / panel.info.tokens).toFixed(1)}%` : ""
  $("status").textContent = `${$("hits").children.length || "none"} found${part}`
  $("more").hidden = !part
  $("more").onclick = () => search(text, from)
  $("hits").querySelector("button")?.focus()
}

// list adds an occurrence to the list, and returns its button.
function list(panel, hit, text) {
  const go = button("", () => goToToken(panel, hit.pos, box)), box = make("div", "hit", go), whole = text => text.replace(/^[\udc80-\udcff]+|[\udc80-\udcff]+$/gu, "")
  const [before, found, after] = [whole(hit.before), text, whole(hit.after)].map(text => spell(make("span", ""), text))
  go.append(make("div", "text", before, make("mark", "", found), after), make("small", "", `position ${count(hit.pos)}`))
  $("hits").append(box)
  return go
}

// goToToken lists the batches that contain the token at a position, and goes to the first one.
async function goToToken(panel, pos, box) {
  box.querySelector(".batches")?.remove()
  const out = make("div", "batches", "searching batches …")
  box.append(out)
  const { value, error } = await ask("find", { s: panel.s, rank: panel.rank, pos, epoch: parseInt($("epoch").value) || 0 }).done
  if (error) return out.textContent = error
  const go = f => {
    if (f.rank !== panel.rank) panel.use(panel.s, f.rank)
    step(f.batch)
    panel.toggle(f.j, f.index)
  }
  const name = f => `batch ${count(f.batch)}${panel.info.world > 1 ? `, rank ${f.rank}` : ""}, row ${f.j}`
  out.replaceChildren(...value.occurrences.slice(0, 100).map(f => button(name(f), () => go(f))), value.occurrences.length ? "" : `in no batch of epoch ${value.epoch}`)
  if (value.occurrences.length) go(value.occurrences[0])
}

const keys = {
  ArrowRight: (p, at, e) => step(state.k + (e.shiftKey ? 10 : 1)),
  ArrowLeft: (p, at, e) => step(state.k - (e.shiftKey ? 10 : 1)),
  ArrowDown: (p, at) => p.go(at.j + 1, 0),
  ArrowUp: (p, at) => p.go(at.j - 1, 0),
  Home: p => p.go(0, 0),
  End: p => p.go(Infinity, 0),
  Enter: (p, at) => p.toggle(at.j),
  ".": (p, at) => p.go(at.j, at.i + 1),
  ",": (p, at) => p.go(at.j, at.i - 1),
  "]": (p, at) => p.go(at.j, p.rowsOf(at.j).r?.segments.find(s => s.at > at.i)?.at ?? at.i),
  "[": (p, at) => p.go(at.j, p.rowsOf(at.j).r?.segments.findLast(s => s.at < at.i)?.at ?? 0),
  g: () => $("k").select(),
  "/": () => $("text").select(),
  s: toggleSideBySide,
  w: p => (state.panels.find(other => other !== p) ?? p).$list.focus(),
  "?": () => $("keys").showModal(),
  Escape: p => {
    if ($("found").hidden) p.open = null
    $("found").hidden = true
    searches++
    p.$list.focus()
    redrawSoon()
  },
}

addEventListener("keydown", e => {
  const press = keys[e.key], p = state.active
  const typing = e.target.matches("input, select") && e.key !== "Escape", pressing = e.target.matches("button") && e.key === "Enter"
  if (!press || !p || typing || pressing || e.ctrlKey || e.metaKey || e.altKey || $("keys").open) return
  e.preventDefault()
  const hit = e.target.closest(".hit"), next = { ArrowDown: hit?.nextSibling, ArrowUp: hit?.previousSibling }[e.key]
  if (hit && next !== undefined) next?.querySelector("button").focus()
  else press(p, state.at.panel === p ? state.at : { j: p.rowAt(p.y), i: 0 }, e)
})

$("back").onclick = () => step(state.k - 1)
$("forward").onclick = () => step(state.k + 1)
$("scrub").oninput = () => step(+$("scrub").value)
$("step").onsubmit = e => { e.preventDefault(); step(parseInt($("k").value.replaceAll(/[,\s]/g, ""))); state.active.$list.focus() }
$("search").onsubmit = e => { e.preventDefault(); if ($("text").value) search($("text").value) }
$("beside").onclick = toggleSideBySide
$("help").onclick = keys["?"]
$("close").onclick = () => keys.Escape(state.active)

sequences = (await ask("sequences", {}).done).value
step(+location.hash.slice(1) || sequences[0].info.start)
$("beside").hidden = sequences.length === 1 && sequences[0].info.world === 1
showPanels([0])
