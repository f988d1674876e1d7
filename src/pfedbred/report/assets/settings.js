// How to reproduce each result: its command and all of its settings.

addSection(() => {
  if (!content.commands.length) return;
  const element = section("settings", "Reproduce", "The command for each result, and all settings of a run or sweep, defaults included.");
  content.commands.forEach((each) => {
    element.append(make("h3", { text: each.name }));
    if (each.command !== null) element.append(make("pre", { tabindex: "0", text: each.command }));
    const rows = Object.entries(each.settings).map(([name, value]) => [name, typeof value === "string" ? value : JSON.stringify(value)]);
    if (rows.length) element.append(make("details", {}, make("summary", { text: "Settings" }), table(["setting", "value"], rows, `Settings of ${each.name}`)));
  });
});
