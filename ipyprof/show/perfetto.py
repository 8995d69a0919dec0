"""Handing a trace to Perfetto's page by one click, through an output that is emptied again.

The protocol is Perfetto's own for this (perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui): open the page,
send ``PING`` until it answers ``PONG``, then send ``{perfetto: {buffer, title, fileName}}``. Before the click there is
a button and a link and nothing else: no trace in the notebook, no request. After it the browser hands the bytes from
one tab to the other; Perfetto's page reads them there.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections.abc import Callable
from typing import Any

from ipyprof.formatting import size_text
from ipyprof.show.markup import escape

_SMALL = "font-size:12px;line-height:17px"
ORIGIN = "https://ui.perfetto.dev"
LINK = f'<a href="{ORIGIN}" target="_blank" rel="noopener">{ORIGIN}</a>'

# A message of base64 in a notebook's page; larger ones make browsers stall. 30 MB packed are 300 to 500 MB of JSON.
MOST_BYTES = 30_000_000
CLEARED_AFTER_S = 30.0
_ids = itertools.count(1)
_SCRIPT = """(() => {
  const box = document.getElementById(%(box)s), origin = %(origin)s;
  const packed = atob(%(data)s), bytes = new Uint8Array(packed.length);
  for (let at = 0; at < packed.length; at++) bytes[at] = packed.charCodeAt(at);
  const say = text => { if (box) box.textContent = text; };
  const hand = () => {
    const page = window.open(origin + "/", "_blank");
    if (!page) {
      say("The browser blocked the new tab. ");
      const again = document.createElement("button");
      again.textContent = "Open it now";
      again.onclick = hand;
      if (box) box.append(again);
      return;
    }
    say("Opening Perfetto...");
    const ping = setInterval(() => page.postMessage("PING", origin), 100);
    const end = setTimeout(() => { stop(); say("Perfetto's page did not answer within a minute."); }, 60000);
    const stop = () => {
      clearInterval(ping);
      clearTimeout(end);
      window.removeEventListener("message", answered);
    };
    const answered = event => {
      if (event.source !== page || event.origin !== origin || event.data !== "PONG") return;
      stop();
      page.postMessage({perfetto: {buffer: bytes.buffer, title: %(title)s, fileName: %(file)s}}, origin);
      say("The trace is in Perfetto's tab.");
    };
    window.addEventListener("message", answered);
  };
  hand();
})();"""


def handover(packed: bytes, title: str) -> str:
    """HTML whose script opens Perfetto's page and hands it the trace. For an output that is not saved.

    Args:
        packed: the trace as gzip.
        title: what Perfetto shows as the trace's name.
    """
    box = f"ipyprof-perfetto-{next(_ids)}"
    script = _SCRIPT % {
        "box": _literal(box),
        "origin": _literal(ORIGIN),
        "data": _literal(base64.b64encode(packed).decode("ascii")),
        "title": _literal(title),
        "file": _literal("trace.json.gz"),
    }
    return f'<div id="{box}" style="{_SMALL}">Opening Perfetto...</div><script>{script}</script>'


def perfetto_button(packed: Callable[[], bytes], title: str) -> Any:
    """A button that hands the trace over, a note, and the output that it goes through: a widget.

    Args:
        packed: gives the trace as gzip; called at the click. What it raises is shown in the note.
        title: what Perfetto shows as the trace's name.
    """
    import ipywidgets

    button = ipywidgets.Button(
        description="Open in Perfetto",
        tooltip="Opens ui.perfetto.dev in a new tab; your browser hands the trace to that page.",
        layout=ipywidgets.Layout(width="150px", flex="0 0 auto"),
    )
    note = ipywidgets.HTML(_note(f"Opens {LINK} in a new tab; until you click, nothing leaves this machine."))
    output = ipywidgets.Output()

    def clear() -> None:
        output.outputs = ()

    def clicked(_button: Any) -> None:
        try:
            data = packed()
        except Exception as failure:
            note.value = _note(escape(f"Not opened: {failure}"))
            return
        if len(data) > MOST_BYTES:
            note.value = _note(
                f"The trace is {size_text(len(data))} packed; more than {size_text(MOST_BYTES)} is not handed over "
                f"through the browser. Save it, open {LINK} and drag the file there."
            )
            return
        shown = {"output_type": "display_data", "data": {"text/html": handover(data, title)}, "metadata": {}}
        output.outputs = (shown,)  # in the widget's state, not among the cell's outputs
        try:
            asyncio.get_running_loop().call_later(CLEARED_AFTER_S, clear)
        except RuntimeError:  # no event loop, so no front end that would have run the script
            clear()

    button.on_click(clicked)
    return ipywidgets.VBox([ipywidgets.HBox([button, note]), output])


def _note(content: str) -> str:
    return f'<div style="{_SMALL};padding:6px 0 0 4px">{content}</div>'


def _literal(text: str) -> str:
    """``text`` as a JavaScript literal that cannot end the script element."""
    return json.dumps(text).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
