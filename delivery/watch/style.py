"""How the report looks: one sheet, light and dark, from a phone to a wall.

What it is: `SHEET`.
What it must not know: what the page says.

Invariants:
    Nothing is loaded: no font, no picture, no script.
    Text and marks keep a contrast of at least 4.5 and 3 to what is behind them, in both schemes.
"""

from __future__ import annotations

__all__ = ["SHEET"]

SHEET = """
:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--ink:#1b2330;--soft:#5a6577;--rule:#dfe3ea;
--c0:#2563eb;--c1:#c2410c;--c2:#0f766e;--c3:#a21caf;--good:#15803d;--warn:#b45309;--bad:#b91c1c}
@media (prefers-color-scheme:dark){:root{--page:#10141b;--card:#1a202b;--ink:#e7ebf2;--soft:#a3aec0;
--rule:#2e3745;--c0:#6ea8fe;--c1:#fb923c;--c2:#2dd4bf;--c3:#e879f9;--good:#4ade80;--warn:#fbbf24;
--bad:#f87171}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",
Roboto,"DejaVu Sans",sans-serif}
main{max-width:76rem;margin:0 auto;padding:1.25rem 1rem 3rem}
h1{font-size:1.5rem;margin:0 0 .25rem}h2{font-size:1.2rem;margin:2.25rem 0 .75rem}
h3{font-size:1.05rem;margin:1.75rem 0 .6rem;overflow-wrap:anywhere}
h4{font-size:.95rem;margin:0 0 .5rem;font-weight:600}
p{margin:.4rem 0}.soft,figcaption{color:var(--soft);font-size:.85rem}
code{font:0.9em ui-monospace,"DejaVu Sans Mono",monospace;overflow-wrap:anywhere}
.tiles,.cards{display:grid;gap:.9rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,10rem),1fr))}
.cards{grid-template-columns:repeat(auto-fill,minmax(min(100%,22rem),1fr))}
.below{margin:.9rem 0}
.tile,figure,.box{background:var(--card);border:1px solid var(--rule);border-radius:.6rem;
padding:.8rem .95rem;margin:0}
.tile b{display:block;font-size:clamp(1.05rem,4.2vw,1.35rem);font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.tile span{color:var(--soft);font-size:.85rem}
.exact{color:var(--good)}.unknown{color:var(--warn)}.degraded{color:var(--bad)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.92rem}
th,td{text-align:left;padding:.4rem .7rem .4rem 0;border-bottom:1px solid var(--rule);white-space:nowrap}
th{color:var(--soft);font-weight:500}tr:last-child td{border-bottom:0}
td.n,th.n{text-align:right}
svg{display:block;width:100%;height:auto;overflow:visible}
.grid{stroke:var(--rule);stroke-width:1}
.mark{stroke:var(--bad);stroke-width:1.5;stroke-dasharray:3 3}
.limit{stroke:var(--ink);stroke-width:2}
.tick,.label{fill:var(--soft);font-size:10.5px}.label{font-size:11px;fill:var(--ink)}
.line{fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.spot{stroke-width:4}
.bar{fill:currentColor}.hover{fill:transparent}.hover:hover{fill:var(--soft);fill-opacity:.14}
.c0{color:var(--c0)}.c1{color:var(--c1)}.c2{color:var(--c2)}.c3{color:var(--c3)}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.1rem .9rem;margin:.45rem 0 0;padding:0;
font-size:.85rem}
.dot{display:inline-block;width:.7em;height:.7em;border-radius:.2em;background:currentColor;
margin-right:.4em}
figcaption{margin-top:.35rem}
ul.plain{margin:0;padding-left:1.1rem}ul.plain li{margin:.35rem 0}
@media print{body{background:#fff}figure,.tile,.box{break-inside:avoid}}
"""
