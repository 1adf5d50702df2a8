"""The page's style sheet: readable at night and on paper."""

from __future__ import annotations

from typing import Final

CSS: Final = """
:root{--bg:#fbfaf8;--panel:#fff;--ink:#1d1f23;--dim:#6a6f78;--line:#e4e1da;--c1:#2f6f8f;--c2:#c98a1b;
--c3:#8a94a6;
--c4:#7a5aa6;--c5:#b0567f;--c6:#4a8f8a;--bad:#c2412d;--good:#2e7d4f}
@media (prefers-color-scheme:dark){:root{--bg:#14161a;--panel:#1c1f25;--ink:#e7e5e0;--dim:#969ca8;
--line:#2e323a;
--c1:#5fb0d3;--c2:#e0ad4d;--c3:#6b7486;--bad:#ee7a66;--good:#6cc08f;--c4:#a78bd6;--c5:#d889b0;--c6:#74bfb8}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);
font:14px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
header,main{max-width:1180px;margin:0 auto;padding:0 24px}
header{padding-top:32px}h1{font-size:26px;margin:0}header p{color:var(--dim);margin:4px 0 12px}
nav{display:flex;flex-wrap:wrap;gap:4px 16px;padding-bottom:8px;border-bottom:1px solid var(--line)}
nav a{color:var(--c1);text-decoration:none}nav a:hover{text-decoration:underline}
section{margin:28px 0}h2{font-size:18px;margin:0 0 10px}h2 small,p{color:var(--dim);font-weight:400}
h3{font-size:13px;margin:14px 0 4px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:12px}
.tile{background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:12px 14px}
.tile small,.tile span{color:var(--dim);display:block}.tile b{font-size:24px;
font-variant-numeric:tabular-nums}
.tile.bad b{color:var(--bad)}.tile.good b{color:var(--good)}
.scroll{overflow-x:auto;background:var(--panel);border:1px solid var(--line);border-radius:8px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:6px 10px;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
tbody tr:last-child td{border-bottom:0}tbody tr:hover{background:color-mix(in srgb,var(--c1) 7%,transparent)}
th{color:var(--dim);font-weight:500;white-space:nowrap}.r{text-align:right;white-space:nowrap}
code{font:12px/1.4 ui-monospace,SFMono-Regular,Menlo,monospace;overflow-wrap:anywhere}
code.sample{display:block;max-width:420px;max-height:5.6em;overflow:hidden;color:var(--dim)}
.plot{display:block;width:100%;height:auto;background:var(--panel);border:1px solid var(--line);
border-radius:8px}
.grid{stroke:var(--line)}.lbl{fill:var(--dim);font-size:11px}.spark{width:120px;height:24px}
.legend{display:flex;gap:16px;margin-top:6px;color:var(--dim)}
.legend i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:6px}
.share{display:inline-block;width:70px;height:8px;background:var(--line);border-radius:4px;margin-right:6px}
.share i{display:block;height:8px;border-radius:4px}.empty{color:var(--dim);font-style:italic}
.tag{font-size:11px;padding:1px 6px;border-radius:8px;background:var(--line)}
.tag.bad{background:var(--bad);color:var(--bg)}
@media (max-width:640px){header,main{padding:0 12px}.plot{min-width:720px}.tiles{gap:8px}
.tile b{font-size:20px}th,td{padding:6px}section{margin:20px 0}}
@media print{body{background:#fff}nav{display:none}section{break-inside:avoid}}
"""
