package cli

import (
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// NewProgress returns a function that shows progress from 0 to 1 as a bar on out; if that is no
// terminal it shows nothing. The function must not be called concurrently.
func NewProgress(out io.Writer, what string) func(done float64) {
	file, ok := out.(*os.File)
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
		if step <= shown { // redrawing costs more than the work between two steps
			return
		}
		shown = step
		// A bar that cannot be drawn is no reason to stop the work.
		_ = bar.Set(step)
	}
}

// A LiveLine shows progress: in a terminal as one line that changes, elsewhere as a line for
// each update. It is safe for concurrent use.
type LiveLine struct {
	out      io.Writer
	terminal bool

	mu    sync.Mutex // guards shown, and is held while out is written to
	shown bool       // the terminal shows a line that must be cleared
}

// NewLiveLine returns a LiveLine in terminal if that is one, else lines in other.
func NewLiveLine(terminal, other io.Writer) *LiveLine {
	f, ok := terminal.(*os.File)
	if ok && term.IsTerminal(int(f.Fd())) {
		return &LiveLine{out: f, terminal: true}
	}
	return &LiveLine{out: other}
}

// Say replaces the shown text; an empty text leaves it.
func (l *LiveLine) Say(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if text == "" {
		return
	}
	if l.terminal {
		fmt.Fprintf(l.out, "\r\x1b[K%s", text)
		l.shown = true
		return
	}
	fmt.Fprintln(l.out, text)
}

// Clear removes the shown line before other output.
func (l *LiveLine) Clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shown {
		fmt.Fprint(l.out, "\r\x1b[K")
		l.shown = false
	}
}

// Columns returns how many columns out has, and whether it is a terminal. For a pipe or file it
// is 80 columns, so that the output does not depend on a window.
func Columns(out io.Writer) (columns int, isTerminal bool) {
	f, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 80, false
	}
	columns, _, err := term.GetSize(int(f.Fd()))
	if err != nil || columns < 20 {
		columns = 80
	}
	return columns, true
}
