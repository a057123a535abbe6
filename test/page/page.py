"""Checks the page of batchfs view in a browser: page.py BATCHFS [PICTURES]

With the directory PICTURES, the program also saves pictures of the page.
"""

import base64
import http.client
import json
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import urllib.parse

from browser import LIMIT, Browser

CHECK_LIMIT = 300  # seconds that a check may take
BATCHFS = os.path.abspath(sys.argv[1])
DOCS = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../docs"))
PICTURES = os.path.abspath(sys.argv[2]) if len(sys.argv) > 2 else None
HOSTILE = ["<script>window.ran = 1</script>", "<img src=x onerror='window.ran = 1'>", "\x1b[31m", "\x00", "\u202eabc", "\u05e9\u05dc\u05d5\u05dd",
           "\r\n", "\u200b", "'\"><svg onload=window.ran=1>", "javascript:window.ran=1", "&lt;b&gt;", "a" * 5000, "\U0001f469\u200d\U0001f467",
           b"\xf0\x9f", b"\x98\x80", b"\xff\xfe", b"", b"\xe6\x97", b"\xa5"]


class Served:
    """A running batchfs view, whose page is open in the browser."""

    def __init__(self, *args):
        self.process = subprocess.Popen([BATCHFS, "view", *args], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.address = self.process.stdout.readline().strip()
        assert self.address.startswith("http://127.0.0.1:"), f"batchfs view {args} printed {self.address!r}, want an address"

    def __enter__(self):
        browser.open(self.address)
        return self

    def __exit__(self, *_):
        browser.call("Page.navigate", url="about:blank")
        browser.wait("location.href === 'about:blank'")
        self.process.send_signal(signal.SIGINT)
        assert (status := self.process.wait(LIMIT)) == 0, f"exit status {status} after SIGINT, want 0"

    def get(self, path, below=None, **headers):
        """Requests a path below the address of the page, or below another path, and returns status and body."""
        url = urllib.parse.urlsplit(self.address)
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=LIMIT)
        connection.request("GET", (below or url.path) + path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


def make_data():
    """Writes splits with texts, chats with masks, hostile tokens and numbers."""
    draw = random.Random(1)
    words = "the of a batch row token reads kernel mount where file trainer number epoch shard and opens seed it in one".split()
    sentence = lambda n: " ".join(draw.choice(words) for _ in range(n)).capitalize() + ". "
    with open("book.txt", "w") as f:
        f.writelines(sentence(draw.randrange(4, 20)) + ("\n" if draw.random() < 0.3 else "") for _ in range(6000))
    with open("chat.jsonl", "w") as f:
        for _ in range(2500):
            prompt, answer = "Question: " + sentence(draw.randrange(6, 25)), "\nAnswer: " + "".join(sentence(9) for _ in range(draw.randrange(1, 12)))
            f.write(json.dumps({"prompt": prompt, "completion": answer}) + "\n")
    for args in (["book.txt", "--by", "gpt2", "--out", "book"], ["chat.jsonl", "--by", "gpt2", "--mask", "prompt:0,completion:1", "--out", "chat"]):
        subprocess.run([BATCHFS, "prepare", *args], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.mkdir("hostile")
    tokens = [t if isinstance(t, bytes) else t.encode() for t in HOSTILE]
    with open("hostile/train.bin", "wb") as f:
        f.write(struct.pack(f"<{40 * len(tokens)}H", *range(len(tokens)), *[i % len(tokens) for i in range(39 * len(tokens))]))
    with open("hostile/vocab.json", "w") as f:
        json.dump({"kind": "bpe", "vocab_size": len(tokens), "token_dtype": "uint16", "token_bytes": [base64.b64encode(t).decode() for t in tokens]}, f)
    with open("matrix.bin", "wb") as f:
        f.write(struct.pack("<4000f", *[i / 8 for i in range(4000)]))
    with open("mixed.toml", "w") as f:
        f.write("batch.block_size = 128\n[splits.mix]\norder = 'shuffle'\narrays = []\n[[splits.mix.sources]]\ntokens = 'book/train.bin'\nweight = 3\n"
                "[[splits.mix.sources]]\ntokens = 'chat/train.bin'\nweight = 1\n")


def save_pictures(name):
    """Saves pictures of the page: wide and narrow, light and dark."""
    if not PICTURES:
        return
    for width, height in (1440, 900), (480, 900):
        for dark in False, True:
            browser.resize(width, height, dark)
            browser.save_picture(f"{PICTURES}/{name}-{width}-{'dark' if dark else 'light'}.png")
    browser.resize(1440, 900)
    browser.wait_until_drawn()


def text_of(row):
    return browser.js(f"document.querySelector('.row[data-j=\"{row}\"] .text').textContent")


def footer_value(name):
    """Returns the value that the footer shows next to a name."""
    return browser.js(f"[...document.querySelectorAll('footer div')].find(e => e.firstChild?.textContent === {json.dumps(name)})?.lastChild.textContent")


def check_steps():
    with Served("--data", "book", "--set", "batch.block_size=256", "--set", "batch.order=shuffle", "train") as view:
        assert browser.js("document.querySelectorAll('.row').length") >= 3
        save_pictures("text")
        first = text_of(0)
        browser.key("ArrowRight")
        browser.wait_until_drawn()
        assert text_of(0) != first and browser.js("document.querySelector('#k').value") == "1"
        batch = json.loads(view.get("rows?s=0&k=1&n=1&len=256")[1])[0]
        assert text_of(0).replace("↵", "").startswith("".join(batch["text"])[:100].replace("\n", "")), f"got {text_of(0)!r}, want the text of {batch}"
        browser.key("ArrowRight", shift=True)
        browser.key("ArrowLeft")
        browser.wait_until_drawn()
        assert browser.js("document.querySelector('#k').value") == "10"
        for _ in range(10):
            browser.key("ArrowLeft")
        browser.key("ArrowLeft")
        browser.wait_until_drawn()
        assert text_of(0) == first, f"got {text_of(0)!r}, want batch 0 again: {first!r}"
        browser.key("g")
        browser.type("150")
        browser.key("Enter")
        browser.wait_until_drawn()
        assert browser.js("document.title").startswith("batch 150 ")
        browser.wait("location.hash === '#150'")
        row, token = view.get("rows?s=0&k=150&from=2&n=1&len=9")[1], 5
        ids = struct.unpack("<9H", base64.b64decode(json.loads(row)[0]["arrays"]["x"]))
        browser.key("ArrowDown", "ArrowDown", *"." * token)
        browser.wait_until_drawn()
        assert (footer_value("token"), footer_value("at")) == (str(ids[token]), f"x[2, {token}]"), f"got token {footer_value('token')} at {footer_value('at')}, want token {token} of {ids}"
        assert footer_value("target").startswith(str(ids[token + 1]))
        browser.key("Enter")
        browser.wait_until_drawn()
        assert browser.js("document.querySelectorAll('.row.open .token').length") == 257, "want all tokens of x, and the last one of y"
        save_pictures("open")
        browser.key("Escape")
        browser.wait_until_drawn()
        assert not browser.js("document.querySelector('.row.open')")


def check_documents():
    settings = ["batch.rows=packed", "batch.block_size=512", "batch.documents=true"]
    with Served("--data", "chat", *[a for s in settings for a in ("--set", s)], "train") as view:
        rows = json.loads(view.get("rows?s=0&k=0&n=12&len=513")[1])
        j = next(j for j, r in enumerate(rows) if len(r["segments"]) > 1)
        browser.key(*["ArrowDown"] * j, "Enter")
        browser.wait_until_drawn()
        begins = [s["at"] for s in rows[j]["segments"]]
        assert browser.js("document.querySelectorAll('.row.open .border').length") == len(begins) - 1
        mask = base64.b64decode(rows[j]["arrays"]["mask"])
        filled = rows[j]["segments"][-1]["at"] + rows[j]["segments"][-1]["len"]
        want = [0] + [i for i in range(1, filled) if not mask[i - 1]]
        assert browser.js("[...document.querySelectorAll('.row.open .masked')].map(e => +e.dataset.i)") == want
        browser.key("]")
        browser.wait_until_drawn()
        assert footer_value("at") == f"x[{j}, {begins[1]}]" and footer_value("document") == f"{rows[j]['segments'][1]['document']:,}"
        browser.key("Enter")
        browser.key("Home")
        save_pictures("packed")
        filled = lambda r: r["segments"][-1]["at"] + r["segments"][-1]["len"]
        k, j, end = next((k, j, filled(r)) for k in range(33) for j, r in enumerate(json.loads(view.get(f"rows?s=0&k={k}&n=12&len=513")[1])) if filled(r) < 512)
        browser.key("g")
        browser.type(str(k))
        browser.key("Enter", *["ArrowDown"] * j, "Enter")
        browser.wait(f"document.querySelector('.row.open[data-j=\"{j}\"] .text .padding')?.textContent === 'padding: {512 - end}'")
        assert browser.js("document.querySelector('.row.open .strip').lastChild.className") == "padding"
        browser.wait_until_drawn()
        browser.wait("""(() => { const [row, list] = ['.row.open', '.list'].map(name => document.querySelector(name).getBoundingClientRect())
            return row.top >= list.top && row.bottom <= list.bottom + 1 })()""")  # the open row is visible
        save_pictures("padding")
    with Served("-c", "mixed.toml") as view:
        assert browser.js("new Set([...document.querySelectorAll('.source')].map(e => e.style.background)).size") == 2
        save_pictures("mixture")


def check_search():
    with Served("--data", "book", "--set", "batch.block_size=64", "--set", "batch.order=shuffle", "train") as view:
        browser.key("/")
        browser.type("trainer number")
        browser.key("Enter")
        browser.wait("document.querySelectorAll('.hit').length >= 20")
        browser.key("ArrowDown", "Enter")
        browser.wait("document.querySelector('.batches button')")
        browser.wait("document.querySelector('.row.open .token.at')")
        save_pictures("search")
        shown = browser.js("document.querySelector('.row.open .text').textContent")
        assert "rainer number" in shown, f"got {shown!r}, want the text that was searched for"
        browser.key("Escape", "/")
        browser.type("@1234")
        browser.key("Enter")
        browser.wait("document.querySelectorAll('.hit').length === 1 && document.querySelector('.batches button') && document.querySelector('.row.open .at')")
        browser.wait_until_drawn()
        occurrences = json.loads(view.get("find?s=0&pos=1234&epoch=0")[1])["occurrences"]
        assert browser.js("document.querySelector('#k').value") == str(occurrences[0]["batch"])
        browser.wait("[...document.querySelectorAll('footer div')].some(e => e.textContent === 'position1,234')")


def check_side_by_side():
    with Served("--data", "book", "--set", "batch.block_size=128", "train", "train/order=sequential", "val"):
        browser.key("s")
        browser.wait_until_drawn()
        browser.wait("document.querySelectorAll('section').length === 2 && [...document.querySelectorAll('section')].every(s => s.querySelector('.token'))")
        browser.key("ArrowRight", "w", "ArrowDown", ".")
        browser.wait_until_drawn()
        assert browser.js("document.querySelectorAll('section')[1].querySelector('.row.here .token.at') !== null")
        assert footer_value("position") == f"{128 * 13 + 1:,}", f"got position {footer_value('position')}, want that of sequential batch 1"
        save_pictures("beside")
        browser.key("s")
        browser.wait_until_drawn()
        assert browser.js("document.querySelectorAll('section').length") == 1


def check_hostile():
    with Served("--data", "hostile", "--set", "batch.block_size=60", "--set", "batch.order=sequential", "train"):
        browser.key("Enter")
        browser.wait_until_drawn()
        browser.key(*"." * 20)
        shown = browser.js("document.querySelector('.row.open .text').textContent")
        for text in "<script>window.ran = 1</script>", "onerror='window.ran = 1'>", "<svg onload=window.ran=1>", "&lt;b&gt;", "U+202Eabc", "U+200B", "\u05e9\u05dc\u05d5\u05dd", "\U0001f600", "FFFE", "\u65e5":
            assert text in shown, f"got {shown!r}, want {text!r} in it"
        assert browser.js("document.querySelectorAll('.rows :is(script, img, svg, b b)').length") == 0
        assert browser.js("window.ran") is None
        save_pictures("hostile")


def check_numbers():
    with Served("--set", "splits.train.tokens=matrix.bin", "--set", "batch.token_dtype=float32", "--set", "splits.train.shape=[10,4]",
                "--set", "batch.layout=rows", "--set", "batch.dtype=native", "--set", "batch.order=sequential", "train"):
        browser.key("ArrowDown", ".", ".", ".")
        browser.wait_until_drawn()
        assert browser.js("[...document.querySelectorAll('.row[data-j=\"1\"] .token')].slice(0, 4).map(e => e.textContent).join()") == "5,5.125,5.25,5.375"
        assert footer_value("number") == "3 of rows[1]" and "rows float32 (12, 10, 4)" in browser.js("document.querySelector('.facts').textContent")
        save_pictures("numbers")


def check_tokenizer():
    tokens = "id: tokenizer.json".encode() * 99
    os.mkdir("foreign")
    with open("foreign/train.bin", "wb") as f:
        f.write(struct.pack(f"<{len(tokens)}H", *tokens))
    # A byte-level vocabulary writes these bytes as themselves, and the others as other characters.
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    alphabet = {chr(b if b in printed else next(others)): b for b in range(256)}
    with open("foreign/tokenizer.json", "w") as f:
        json.dump({"model": {"type": "BPE", "vocab": alphabet, "merges": []}, "added_tokens": [],
                   "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}}, f)
    with Served("--data", "foreign", "--set", "batch.order=sequential", "--set", "batch.block_size=36", "train"):
        assert text_of(0).startswith("1051005832"), f"got {text_of(0)!r}, want numbers, because there is no tokenizer"
        assert "--by names the tokenizer" in browser.js("document.querySelector('.facts').textContent")
        save_pictures("unknown")
    with Served("--data", "foreign", "--by", "foreign/tokenizer.json", "--set", "batch.order=sequential", "--set", "batch.block_size=36", "train"):
        assert text_of(0) == "id: tokenizer.jsonid: tokenizer.jsoni"


def check_mounts():
    os.mkdir("mount")
    mount = subprocess.Popen([BATCHFS, "mount", "--data", "book", "mount"], stderr=subprocess.PIPE, text=True)
    try:
        next(line for line in mount.stderr if "mounted" in line)
        with Served("mount/train", "mount/val", "mount/train/seed=3") as view:
            assert [s["name"] for s in json.loads(view.get("sequences")[1])] == ["mount/train", "mount/val", "mount/train/seed=3"]
            with open("mount/train/batch/0", "rb") as f:
                want = f.read(512)
            assert base64.b64decode(json.loads(view.get("rows?n=1&len=256")[1])[0]["arrays"]["x"]) == want
    finally:
        mount.send_signal(signal.SIGINT)
        mount.communicate(timeout=LIMIT)


def check_keyboard():
    with Served("--data", "chat", "--set", "splits.train.world=2"):
        reached = set()
        for _ in range(12):
            browser.key("Tab")
            reached.add(browser.js("document.activeElement.id || document.activeElement.className"))
        assert reached >= {"back", "k", "forward", "scrub", "text", "beside", "help", "split", "rank", "list"}, f"Tab reached only {reached}"
        browser.key("Escape", "?")
        assert browser.js("document.querySelector('#keys').open")
        save_pictures("keys")
        browser.key("Escape")
        assert not browser.js("document.querySelector('#keys').open")
        browser.key("ArrowRight")
        browser.wait_until_drawn()
        assert browser.js("document.querySelector('#k').value") == "1", "after the help is closed, the right arrow must show the next batch"


# SCROLL scrolls through the list. It returns the largest numbers of elements and rows, the number
# of rows created, and the numbers of frames with an empty part and of all frames.
SCROLL = """(async () => {
    const list = document.querySelector('.list'), rows = list.firstElementChild, seen = {nodes: 0, rows: 0, made: 0, bare: 0, frames: 0}
    const watch = new MutationObserver(all => { for (const m of all) seen.made += m.addedNodes.length })
    watch.observe(rows, {childList: true})
    for (const by of [...Array(90).fill(60), ...Array(30).fill(2000)]) {
        list.scrollTop += by
        await new Promise(requestAnimationFrame)
        await new Promise(done => setTimeout(done))
        const box = list.getBoundingClientRect(), drawn = [...rows.children].map(e => e.getBoundingClientRect())
        seen.bare += Math.min(...drawn.map(r => r.top)) > box.top + 1 || Math.max(...drawn.map(r => r.bottom)) < box.bottom - 1
        seen.nodes = Math.max(seen.nodes, rows.querySelectorAll('*').length)
        seen.rows = Math.max(seen.rows, rows.children.length)
        seen.frames++
    }
    return seen
})()"""


def check_docs():
    """Saves the picture for docs/view.md, with data made from the pages in docs."""
    if not PICTURES:
        return
    with open("docs.jsonl", "w") as f:
        for page in sorted(os.listdir(DOCS)):
            for section in open(f"{DOCS}/{page}", encoding="utf-8").read().split("\n## ")[1:] if page.endswith(".md") else []:
                heading, text = section.split("\n", 1)
                text = [p for p in text.split("\n\n") if p.strip("\n")[:1].isalpha()][:2]
                if text:
                    f.write(json.dumps({"prompt": f"User: {heading}?\nAssistant:", "completion": " " + "\n".join(p.strip() for p in text)}) + "\n")
    subprocess.run([BATCHFS, "prepare", "docs.jsonl", "--by", "gpt2", "--mask", "prompt:0,completion:1", "--out", "chats"], check=True, capture_output=True)
    settings = ["batch.rows=packed", "batch.block_size=256", "batch.batch_size=4", "batch.documents=true", "batch.seed=3"]
    with Served("--data", "chats", *[a for s in settings for a in ("--set", s)]):
        browser.key("ArrowRight", "ArrowDown", *"." * 12)
        browser.resize(1180, 640)
        browser.wait_until_drawn()
        browser.js("document.querySelector('footer .wide').lastChild.data = '/data/chats/train.bin'")
        browser.save_picture(f"{PICTURES}/docs.png")
        browser.resize(1440, 900)


def check_many_rows():
    seen = []
    for rows in 512, 65536:
        with Served("--data", "chat", "--set", f"batch.batch_size={rows}", "--set", "batch.block_size=1024", "train"):
            seen.append(browser.js(SCROLL))
            browser.wait_until_drawn()
            browser.key("End")
            browser.wait(f"document.querySelector('.row[data-j=\"{rows - 1}\"] .token')")
            assert browser.js("performance.getEntriesByType('resource').filter(e => e.name.includes('/rows?')).length") < 90, "the page must request only visible rows"
            browser.key("ArrowUp", "ArrowRight")
            browser.wait_until_drawn()
            assert browser.js("document.querySelector('.row.here').dataset.j") == str(rows - 2)
            if rows == 65536:
                save_pictures("many")
    few, many = seen
    print(f"120 frames of scrolling, 512 and 65,536 rows: {few}, {many}")
    assert many["bare"] == 0 and many["rows"] < 15, f"{many}: each frame must have all visible rows and no others"
    assert many["nodes"] < 2 * few["nodes"] and many["made"] < 2 * few["made"] + 100, f"{few}, {many}: many rows must take no more work than few"


def check_access():
    with Served("--data", "book", "train") as view:
        host = view.address.split("/")[2]
        for headers, want in [({}, 200), ({"Host": "localhost:1"}, 200), ({"Host": "example.org"}, 403), ({"Host": f"batches.example:{host.split(':')[1]}"}, 403),
                              ({"Origin": "http://example.org"}, 403), ({"Origin": "null"}, 403), ({"Origin": f"http://{host}"}, 200), ({"below": "/"}, 403), ({"below": "/WRONG/"}, 403)]:
            for path in "", "sequences", "rows?n=1&len=1":
                status, body = view.get(path, **headers)
                assert status == want and (status == 200 or b"batch" not in body.replace(b"batchfs view", b"")), f"{headers}: got {status} {body}, want {want}"
        browser.js("window.elsewhere = fetch('http://127.0.0.1:1/').catch(e => String(e)), 1")
        assert "Failed" in browser.js("window.elsewhere")
        assert "TrustedHTML" in browser.js("(() => { try { document.body.innerHTML = 'x' } catch (e) { return String(e) } })()")


def interrupt(*_):
    """Interrupts any wait, so that the traceback names it. What cleans up then has as long again."""
    signal.alarm(CHECK_LIMIT)
    raise TimeoutError(f"not within {CHECK_LIMIT} s")


signal.signal(signal.SIGALRM, interrupt)
signal.alarm(CHECK_LIMIT)
with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    if PICTURES:
        os.makedirs(PICTURES, exist_ok=True)
    make_data()
    browser = Browser()
    try:
        browser.resize(1440, 900)
        for check in check_steps, check_documents, check_search, check_side_by_side, check_hostile, check_numbers, check_tokenizer, check_mounts, check_keyboard, check_docs, check_many_rows:
            signal.alarm(CHECK_LIMIT)
            check()
            print("ok", check.__name__.removeprefix("check_"))
        faults = [e for e in browser.events if e["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")]
        assert not faults, f"the browser reported errors: {faults}"
        foreign = {e["params"]["request"]["url"].split("/")[2] for e in browser.events if e["method"] == "Network.requestWillBeSent" and "//" in e["params"]["request"]["url"]}
        assert all(host.startswith("127.0.0.1:") for host in foreign), f"the page sent requests to {foreign}"
        check_access()
        print("ok access")
    finally:
        browser.close()
