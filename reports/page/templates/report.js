document.querySelectorAll("button.copy").forEach(button => {
  button.hidden = false;
  button.addEventListener("click", () => navigator.clipboard.writeText(
    button.parentElement.querySelector("pre").textContent));
});
