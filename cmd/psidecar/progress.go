package main

import (
	"os"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// newProgress returns a function that shows how far something is, from 0 to 1,
// as a bar on standard error; where that is no terminal it shows nothing. It
// is for one goroutine at a time.
func newProgress(e env, what string) func(done float64) {
	file, ok := e.bareErr.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return func(float64) {}
	}
	const steps = 1000
	bar := progressbar.NewOptions(steps,
		progressbar.OptionSetWriter(file),
		progressbar.OptionSetDescription(what),
		progressbar.OptionSetWidth(30),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetPredictTime(true))
	shown := -1
	return func(done float64) {
		step := int(min(max(done, 0), 1) * steps)
		if step <= shown {
			return
		}
		shown = step
		// A bar that cannot be drawn is no reason to stop the work.
		_ = bar.Set(step)
	}
}
