"use strict";
(() => {
  const told = JSON.parse(document.getElementById("data").textContent);
  const byId = (name) => document.getElementById(name);
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const time = (seconds) => {
    const size = Math.abs(seconds);
    if (size < 5e-13) return "0 us";
    if (size >= 1) return seconds.toPrecision(3) + " s";
    return size >= 1e-3 ? (seconds * 1e3).toPrecision(3) + " ms" : (seconds * 1e6).toPrecision(3) + " us";
  };

  // ---- Events: by row of the timeline, [instruction, start, end] one after another, in order of their starts.
  const rows = told.lines.map((line) => ({
    title: line.title,
    what: `computation on ${line.devices}`,
    busy: line.busy,
    color: "--compute",
  }));
  rows.push({ title: "collectives", what: "collective of all devices at work", busy: told.communication, color: "--send" });
  const whole = Math.max(told.seconds, 1e-12);
  const view = { from: 0, to: whole };
  let chosen = null; // {row, event}, or {instruction} of what takes no time.

  const count = (row) => row.busy.length / 3;
  const start = (row, event) => row.busy[3 * event + 1];
  const end = (row, event) => row.busy[3 * event + 2];
  const instruction = (row, event) => row.busy[3 * event];
  // The last event that starts at a moment or before, -1 for none.
  const before = (row, moment) => {
    let low = 0;
    let high = count(row);
    while (low < high) {
      const middle = (low + high) >> 1;
      if (start(row, middle) <= moment) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  };

  // ---- The timeline.
  const canvas = byId("clock");
  const HEAD = 20;
  const TALL = 34;
  canvas.style.height = `${HEAD + TALL * rows.length + 4}px`;
  let size = { width: 0, height: 0 };

  const draw = () => {
    const scale = window.devicePixelRatio || 1;
    size = { width: canvas.clientWidth, height: canvas.clientHeight };
    canvas.width = Math.max(1, Math.round(size.width * scale));
    canvas.height = Math.max(1, Math.round(size.height * scale));
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.font = "12px system-ui, sans-serif";
    const ink = color("--ink");
    const across = (moment) => ((moment - view.from) / (view.to - view.from)) * size.width;
    // A tick every 80 pixels or so, at round moments.
    const rough = ((view.to - view.from) * 80) / Math.max(size.width, 80);
    const power = 10 ** Math.floor(Math.log10(rough));
    const every = [1, 2, 5, 10].map((factor) => factor * power).find((tick) => tick >= rough);
    for (let number = Math.ceil(view.from / every); number * every <= view.to; number += 1) {
      pen.fillStyle = color("--rule");
      pen.fillRect(across(number * every), 0, 1, size.height);
      pen.fillStyle = color("--quiet");
      pen.fillText(number ? time(number * every) : "0", across(number * every) + 3, 12);
    }
    rows.forEach((row, number) => {
      const top = HEAD + TALL * number;
      pen.fillStyle = ink;
      pen.fillText(row.title, 4, top + 11);
      pen.fillStyle = color(row.color);
      let drawn = -1;
      for (let event = Math.max(0, before(row, view.from)); event < count(row); event += 1) {
        if (start(row, event) > view.to) break;
        const left = Math.max(across(start(row, event)), drawn, 0);
        const right = Math.min(across(end(row, event)), size.width);
        if (right - left < 0.3 && right <= drawn + 0.3) continue;
        const gap = right - left > 3 ? 1 : 0;
        pen.fillRect(left, top + 14, Math.max(right - left - gap, 0.5), 16);
        drawn = right;
      }
    });
    if (chosen && chosen.row) {
      const top = HEAD + TALL * rows.indexOf(chosen.row);
      const left = across(start(chosen.row, chosen.event));
      const wide = Math.max(across(end(chosen.row, chosen.event)) - left, 3);
      pen.strokeStyle = color("--chosen");
      pen.lineWidth = 3;
      pen.strokeRect(left, top + 13, wide, 18);
    }
  };

  const show = (from, to) => {
    const span = Math.min(whole, Math.max(to - from, whole * 1e-6));
    view.from = Math.min(Math.max(0, from), whole - span);
    view.to = view.from + span;
    draw();
  };
  const zoom = (factor, around = (view.from + view.to) / 2) =>
    show(around - (around - view.from) * factor, around + (view.to - around) * factor);
  const move = (part) => {
    const by = (view.to - view.from) * part;
    show(view.from + by, view.to + by);
  };
  const moment = (x) => view.from + ((x - canvas.getBoundingClientRect().left) / size.width) * (view.to - view.from);
  const under = (event) => {
    const row = rows[Math.floor((event.clientY - canvas.getBoundingClientRect().top - HEAD) / TALL)];
    if (!row) return null;
    const found = before(row, moment(event.clientX));
    const near = ((view.to - view.from) / size.width) * 3;
    return found >= 0 && end(row, found) + near >= moment(event.clientX) ? { row, event: found } : null;
  };
  const words = ({ row, event }) => {
    const [text, source] = told.program[instruction(row, event)];
    const spent = time(end(row, event) - start(row, event));
    return `${text} - ${row.what}, ${spent} from ${time(start(row, event))}${source ? ` - ${source}` : ""}`;
  };

  // ---- What is chosen, in the timeline and in the program.
  const tell = (text) => { byId("chosen").textContent = text; };
  const choose = (found, scroll) => {
    chosen = found;
    tell(words(found));
    if (start(found.row, found.event) < view.from || end(found.row, found.event) > view.to) {
      const span = view.to - view.from;
      show(start(found.row, found.event) - span / 2, start(found.row, found.event) + span / 2);
    } else draw();
    if (scroll) list.select(instruction(found.row, found.event));
  };
  const chooseInstruction = (wanted) => {
    for (const row of rows) {
      for (let event = 0; event < count(row); event += 1) {
        if (instruction(row, event) === wanted) return choose({ row, event }, false);
      }
    }
    chosen = { instruction: wanted };
    tell(`${told.program[wanted][0]} - takes no time of its own`);
    draw();
  };
  const step = (by) => {
    const row = chosen && chosen.row ? chosen.row : rows[0];
    const event = chosen && chosen.row ? chosen.event + by : 0;
    if (event >= 0 && event < count(row)) choose({ row, event }, true);
  };

  byId("closer").onclick = () => zoom(0.5);
  byId("wider").onclick = () => zoom(2);
  byId("earlier").onclick = () => move(-0.25);
  byId("later").onclick = () => move(0.25);
  byId("whole").onclick = () => show(0, whole);
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, moment(event.clientX));
  }, { passive: false });
  let held = null;
  canvas.addEventListener("pointerdown", (event) => {
    held = { x: event.clientX, from: view.from, to: view.to, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (held) {
      const by = ((held.x - event.clientX) / size.width) * (held.to - held.from);
      held.moved = held.moved || Math.abs(held.x - event.clientX) > 3;
      if (held.moved) show(held.from + by, held.to + by);
      return;
    }
    const found = under(event);
    canvas.title = found ? words(found) : "";
  });
  canvas.addEventListener("pointerup", (event) => {
    const found = held && !held.moved ? under(event) : null;
    held = null;
    if (found) choose(found, true);
  });
  canvas.addEventListener("pointercancel", () => { held = null; });
  const keys = {
    ArrowLeft: () => move(-0.25), ArrowRight: () => move(0.25), "+": () => zoom(0.5), "=": () => zoom(0.5),
    "-": () => zoom(2), Home: () => show(0, whole), ",": () => step(-1), ".": () => step(1),
  };
  canvas.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });

  // ---- The program: only the rows that are seen are there.
  const list = (() => {
    const box = byId("list");
    const inner = byId("rows");
    const texts = told.program.map((row) => row.join(" ").toLowerCase());
    let shown = told.program.map((_, number) => number);
    let selected = -1; // Among those shown.
    const PRINTED = 1000; // Of the program, so many first instructions are on paper.
    const tall = 1.75 * parseFloat(getComputedStyle(document.documentElement).fontSize);
    const render = (all) => {
      inner.style.height = `${shown.length * tall}px`;
      const first = all === true ? 0 : Math.max(0, Math.floor(box.scrollTop / tall) - 5);
      const seen = all === true ? PRINTED : Math.ceil((box.scrollTop + box.clientHeight) / tall) + 5;
      const last = Math.min(shown.length, seen);
      inner.replaceChildren();
      for (let place = first; place < last; place += 1) {
        const [text, source, module] = told.program[shown[place]];
        const row = document.createElement("div");
        row.className = "row";
        row.id = `row-${shown[place]}`;
        row.style.top = `${place * tall}px`;
        row.style.height = `${tall}px`;
        row.setAttribute("role", "option");
        row.setAttribute("aria-selected", String(place === selected));
        row.setAttribute("aria-setsize", String(shown.length));
        row.setAttribute("aria-posinset", String(place + 1));
        row.append(`${String(shown[place]).padStart(5)}  ${text}`);
        if (source || module) {
          const from = document.createElement("span");
          from.className = "source";
          from.textContent = `   # ${[module, source].filter(Boolean).join(", ")}`;
          row.append(from);
        }
        row.onclick = () => pick(place);
        inner.append(row);
      }
      if (all === true && last < shown.length) inner.append(`and ${shown.length - last} more: search for fewer`);
      if (selected >= first && selected < last) box.setAttribute("aria-activedescendant", `row-${shown[selected]}`);
      else box.removeAttribute("aria-activedescendant");
    };
    const reveal = (place) => {
      if (place * tall < box.scrollTop) box.scrollTop = place * tall;
      else if ((place + 1) * tall > box.scrollTop + box.clientHeight) box.scrollTop = (place + 1) * tall - box.clientHeight;
    };
    const pick = (place) => {
      if (!shown.length) return;
      selected = Math.min(Math.max(place, 0), shown.length - 1);
      reveal(selected);
      render();
      chooseInstruction(shown[selected]);
    };
    box.addEventListener("scroll", render);
    box.addEventListener("keydown", (event) => {
      const page = Math.max(1, Math.floor(box.clientHeight / tall) - 1);
      const to = { ArrowDown: selected + 1, ArrowUp: selected - 1, PageDown: selected + page, PageUp: selected - page,
        Home: 0, End: shown.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      pick(to);
    });
    byId("find").addEventListener("input", (event) => {
      const parts = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
      shown = told.program.map((_, number) => number).filter((number) => parts.every((part) => texts[number].includes(part)));
      selected = -1;
      byId("found").textContent = `${shown.length} of ${told.program.length} instructions`;
      box.scrollTop = 0;
      render();
    });
    return {
      render,
      select: (wanted) => {
        selected = shown.indexOf(wanted);
        if (selected >= 0) reveal(selected);
        render();
      },
    };
  })();

  // ---- Light and dark.
  const dark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches
    ? "dark" : "light")) === "dark";
  const theme = () => { byId("theme").textContent = dark() ? "Light" : "Dark"; draw(); };
  byId("theme").onclick = () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    theme();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", theme);
  // Paper is white, and shows the list without scrolling, as far as it is printed.
  let asked;
  let printing = false;
  window.addEventListener("beforeprint", () => {
    printing = true;
    asked = document.documentElement.dataset.theme;
    document.documentElement.dataset.theme = "light";
    draw();
    list.render(true);
  });
  window.addEventListener("afterprint", () => {
    printing = false;
    if (asked) document.documentElement.dataset.theme = asked;
    else delete document.documentElement.dataset.theme;
    theme();
    list.render();
  });
  // What scrolls can be reached by the keyboard, and nothing else stops there.
  const reach = () => document.querySelectorAll(".scroll").forEach((box) => {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  });
  new ResizeObserver(() => {
    if (printing) return; // It would take the list back to what the screen shows of it.
    draw();
    list.render();
    reach();
  }).observe(document.body);
  theme();
  list.render();
})();
