package draw

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/psidecar/psidecar/page"
)

// Control sequences: to enter the alternate screen and hide the cursor, to move to the top, to
// clear the rest of a line and of the screen, and to leave again. Each screen is painted over
// the previous one, line by line, which does not flicker as clearing first would.
const (
	ScreenOn   = "\x1b[?1049h\x1b[?25l"
	screenHome = "\x1b[H"
	lineEnd    = "\x1b[K\r\n"
	screenRest = "\x1b[J"
	ScreenOff  = "\x1b[?25h\x1b[?1049l"
)

// A View draws the screens of psidecar top in a terminal. It is used by one goroutine.
type View struct {
	// Fetch returns the data of all jobs, and details of one, given by its scheduler's
	// host:port; empty: any.
	Fetch func(ctx context.Context, job string) (*Screen, error)
	Job   string        // the job that Fetch is asked for first
	Every time.Duration // interval between screens
	// Fit makes the text of an error safe for a terminal.
	Fit     func(text string) string
	Colours Colours
}

// Run draws screens until the user quits or ctx ends. Keys are read from stdin if it is a
// terminal, which is in raw mode meanwhile and restored at the end. If data cannot be fetched,
// the last screen stays with an error; an error of the first fetch is returned.
func (t *View) Run(ctx context.Context, stdin io.Reader, out *os.File) error {
	// Without a terminal to read from, the channel stays empty and ctx alone ends the view.
	keys := make(chan byte)
	if in, ok := stdin.(*os.File); ok && term.IsTerminal(int(in.Fd())) {
		before, err := term.MakeRaw(int(in.Fd()))
		if err != nil {
			return fmt.Errorf("setting the terminal: %w", err)
		}
		defer term.Restore(int(in.Fd()), before)
		go readKeys(ctx, in, keys)
	}
	if _, err := io.WriteString(out, ScreenOn); err != nil {
		return err
	}
	// Deferred after the terminal's mode, so it runs before that is restored: the alternate
	// screen must not outlive the view, whatever ends it.
	defer io.WriteString(out, ScreenOff)
	ticker := time.NewTicker(t.Every)
	defer ticker.Stop()
	var s *Screen
	for looks := true; ; {
		if looks {
			newer, err := t.Fetch(ctx, t.Job)
			switch {
			case ctx.Err() != nil:
				return nil
			case err == nil:
				s = newer
			case s == nil:
				return err
			default:
				s.Trouble = t.Fit(err.Error())
			}
		}
		if err := paintScreen(out, s, t.Colours); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			looks = true
		case key := <-keys:
			if key == quit {
				return nil
			}
			// A key that selects nothing repaints the last data, for instance in a new window
			// size, without asking for newer ones.
			looks = t.choose(s, key)
		}
	}
}

// paintScreen draws a screen over the previous one, in the terminal's present size.
func paintScreen(out *os.File, s *Screen, colours Colours) error {
	width, height, err := term.GetSize(int(out.Fd()))
	if err != nil {
		width, height = 80, 24
	}
	var b strings.Builder
	if err := Top(&b, s, width, height, colours); err != nil {
		return err
	}
	text := strings.ReplaceAll(strings.TrimSuffix(b.String(), "\n"), "\n", lineEnd)
	_, err = io.WriteString(out, screenHome+text+"\x1b[K"+screenRest)
	return err
}

// Keys with a meaning; arrow keys are mapped to them.
const (
	quit = 'q'
	up   = 'k'
	down = 'j'
)

// readKeys sends keys with a meaning until the terminal is closed or ctx ends. A blocked read
// cannot be interrupted, so the goroutine may outlive Run by one key.
func readKeys(ctx context.Context, in io.Reader, keys chan<- byte) {
	b := make([]byte, 16)
	for {
		n, err := in.Read(b)
		if errors.Is(err, io.EOF) || n == 0 || err != nil {
			return
		}
		for _, key := range meant(b[:n]) {
			select {
			case keys <- key:
			case <-ctx.Done():
				return
			}
		}
	}
}

// meant returns the keys among what a terminal has sent. Arrow keys are escape sequences;
// Ctrl-C and Ctrl-D are bytes, since raw mode turns signals off.
func meant(b []byte) (keys []byte) {
	switch {
	case string(b) == "\x1b[A" || string(b) == "\x1bOA":
		return []byte{up}
	case string(b) == "\x1b[B" || string(b) == "\x1bOB":
		return []byte{down}
	}
	for _, c := range b {
		switch c {
		case 'q', 'Q', 3, 4:
			keys = append(keys, quit)
		case up, down:
			keys = append(keys, c)
		}
	}
	return keys
}

// choose selects the job above or below the shown one, and reports whether there is one.
func (t *View) choose(s *Screen, key byte) bool {
	at := slices.IndexFunc(s.Jobs, func(j page.Job) bool { return j.Name == s.Shown })
	next := at + 1
	if key == up {
		next = at - 1
	}
	if at < 0 || next < 0 || next >= len(s.Jobs) {
		return false
	}
	t.Job = s.Jobs[next].Name
	return true
}
