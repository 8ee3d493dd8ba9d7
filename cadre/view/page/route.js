// The place in the page, kept in its address, so that every view and every node has a link that lasts.

const DEFAULTS = { tab: "curves" };

export function read() {
  const [tab, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { ...DEFAULTS, ...(tab ? { tab } : {}), ...Object.fromEntries(new URLSearchParams(query ?? "")) };
}

export function address(place) {
  const { tab, ...rest } = place;
  const kept = Object.entries(rest).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const query = new URLSearchParams(kept.map(([key, value]) => [key, String(value)])).toString();
  return `#/${tab}${query ? `?${query}` : ""}`;
}

// Goes to a place. `replace` leaves no trace in the history, as for moving about within one view.
export function go(changes, replace = false) {
  const next = address({ ...read(), ...changes });
  if (next === location.hash) return;
  if (replace) {
    history.replaceState(null, "", next);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = next;
  }
}
