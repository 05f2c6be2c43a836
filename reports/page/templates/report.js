document.querySelectorAll("button.copy").forEach(button => {
  button.hidden = false;
  button.