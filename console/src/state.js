// What the parts of the page share: who is logged in, what the server said last, the address.
import { useEffect, useReducer, useRef, useState } from "preact/hooks";

/** `news`: the second in which the last wait, incident and mark were told. */
export const shared = { me: null, now: null, live: false, theme: "light", news: {} };
const hearers = new Set();
let version = 0;

export function set(changes) {
  Object.assign(shared, changes);
  version++;
  hearers.forEach(hear => hear());
}

/** What is shared, looked at again with each change. */
export function useShared() {
  const [, again] = useReducer(n => n + 1, 0);
  const drawn = version;
  useEffect(() => {
    hearers.add(again);
    // A change between drawing and hearing would be missed.
    if (version !== drawn) again();
    return () => hearers.delete(again);
  }, []);
  return shared;
}

/** The view and the parameters in the address: `#keys?db=0`. */
export function place() {
  const [view, query] = location.hash.slice(1).split("?");
  return { view: view || "waits", with: new URLSearchParams(query || "") };
}

export const link = (view, parameters) => "#" + view + (parameters ? "?" + new URLSearchParams(parameters) : "");

export function usePlace() {
  const [at, move] = useState(place());
  useEffect(() => {
    const hear = () => move(place());
    addEventListener("hashchange", hear);
    return () => removeEventListener("hashchange", hear);
  }, []);
  return at;
}

/** The result of `load()`, asked again when `deps` change and every `every` milliseconds while the page is seen. */
export function useLoaded(load, deps, every) {
  const [state, become] = useState({ loading: true });
  const count = useRef(0);
  const again = () => {
    const mine = ++count.current;
    // An answer that is overtaken by a later question is dropped.
    Promise.resolve().then(load).then(value => mine === count.current && become({ value }),
      error => mine === count.current && become(was => ({ error, value: was.value })));
  };
  useEffect(() => {
    again();
    const timer = every && setInterval(() => document.hidden || again(), every);
    return () => { count.current++; clearInterval(timer); };
  }, deps);
  return [state, again];
}

/** A canvas that is drawn again when it is resized, when the theme changes, and when `deps` change. */
export function useDrawn(draw, deps) {
  const canvas = useRef(null);
  const { theme } = useShared();
  useEffect(() => {
    const node = canvas.current;
    if (!node) return;
    draw(node);
    const watch = new ResizeObserver(() => draw(node));
    watch.observe(node);
    return () => watch.disconnect();
  }, [...deps, theme]);
  return canvas;
}
