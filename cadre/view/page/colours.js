// Colours by name. Roles and runs take them in order of appearance; both palettes are told apart without red and green.

const HUES = [215, 28, 155, 285, 350, 185, 60, 120];

export function hue(place) {
  return HUES[place % HUES.length];
}

export function isDark() {
  const set = document.documentElement.dataset.theme;
  return set ? set === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

export function line(place, opacity = 1) {
  const [light, chroma] = isDark() ? [0.76, 0.13] : [0.54, 0.15];
  return `oklch(${light} ${chroma} ${hue(place)} / ${opacity})`;
}

export function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function roleHue(run, role) {
  const roles = Object.keys(run.assignment);
  const place = roles.indexOf(role);
  return hue(place < 0 ? roles.length : place);
}
