package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/psidecar/psidecar/client"
	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/page"
	"github.com/psidecar/psidecar/page/draw"
)

// What a terminal is told before, between and after screens: to keep what it
// shows and hide the cursor, to begin at the top and clear what is left of the
// screen before, to go back.
const (
	screenOn   = "\x1b[?1049h\x1b[?25l"
	screenHome = "\x1b[H"
	lineEnd    = "\x1b[K\r\n"
	screenRest = "\x1b[J"
	screenOff  = "\x1b[?25h\x1b[?1049l"
)

// top is the live view.
type top struct {
	agent, job string
	every      time.Duration
	once       bool
}

func newTopCommand(e env) *cobra.Command {
	var t top
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch jobs in the terminal: rates, who waits for whom, servers, workers and hosts",
		Long: `Watch the jobs of an agent or a planner in the terminal: their rates, who waits
for whom, the last hour, servers, workers and hosts. Arrows choose the job of
which there is more, q ends it. Where standard output is no terminal, it prints
what is there once.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if t.every < 100*time.Millisecond {
				return cli.Usagef("--every %v: want 100ms or more", t.every)
			}
			out, ok := e.bareOut.(*os.File)
			if t.once || !ok || !term.IsTerminal(int(out.Fd())) {
				return t.printOnce(cmd.Context(), e)
			}
			return t.watch(cmd.Context(), e, out)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&t.agent, "agent", client.AgentURL, "URL of the agent or planner to ask")
	flags.StringVar(&t.job, "job", "", "the job of which to show more, by its scheduler's host:port; default: the first that is not over")
	flags.DurationVar(&t.every, "every", 2*time.Second, "how often to look")
	flags.BoolVar(&t.once, "once", false, "print what is there once, also to a terminal")
	return cmd
}

// printOnce prints all there is, as wide as it takes.
func (t *top) printOnce(ctx context.Context, e env) error {
	s, err := t.fetchScreen(ctx)
	if err != nil {
		return err
	}
	const wide = 160
	return draw.Top(e.stdout, s, wide, 0, draw.NoColours)
}

// fetchScreen asks for what a screen shows.
func (t *top) fetchScreen(ctx context.Context) (*draw.Screen, error) {
	s, err := client.FetchScreen(ctx, t.agent, t.job)
	if err == nil {
		fit(s)
	}
	return s, err
}

// fit makes the texts of a screen fit for a terminal.
func fit(s *draw.Screen) {
	clean := func(texts ...*string) {
		for _, text := range texts {
			*text = cli.Clean(*text)
		}
	}
	clean(&s.Agent.Host, &s.Agent.Version, &s.Shown, &s.Trouble)
	for i := range s.Agent.Hosts {
		h := &s.Agent.Hosts[i]
		clean(&h.Host)
		for l := range h.Lost {
			clean(&h.Lost[l].Reason)
		}
	}
	for i := range s.Jobs {
		j := &s.Jobs[i]
		clean(&j.Name, &j.State, &j.What)
		for l := range j.Stalls {
			clean(&j.Stalls[l].Kind, &j.Stalls[l].Text)
		}
	}
	for i := range s.Servers.Servers {
		clean(&s.Servers.Servers[i].Name)
	}
	for i := range s.Servers.Workers {
		clean(&s.Servers.Workers[i].Name)
	}
}

// watch draws screens until a key or ctx ends it.
func (t *top) watch(ctx context.Context, e env, out *os.File) error {
	keys := make(chan byte)
	if in, ok := e.stdin.(*os.File); ok && term.IsTerminal(int(in.Fd())) {
		before, err := term.MakeRaw(int(in.Fd()))
		if err != nil {
			return fmt.Errorf("setting the terminal: %w", err)
		}
		defer term.Restore(int(in.Fd()), before)
		go readKeys(ctx, in, keys)
	}
	if _, err := io.WriteString(out, screenOn); err != nil {
		return err
	}
	defer io.WriteString(out, screenOff)
	colours := draw.ColoursOf(e.lookup)
	ticker := time.NewTicker(t.every)
	defer ticker.Stop()
	var s *draw.Screen
	for looks := true; ; {
		if looks {
			newer, err := t.fetchScreen(ctx)
			switch {
			case ctx.Err() != nil:
				return nil
			case err == nil:
				s = newer
			case s == nil:
				return err
			default:
				s.Trouble = cli.Clean(err.Error())
			}
		}
		if err := paint(out, s, colours); err != nil {
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
			looks = t.choose(s, key)
		}
	}
}

// paint draws a screen over the one before.
func paint(out *os.File, s *draw.Screen, colours draw.Colours) error {
	width, height, err := term.GetSize(int(out.Fd()))
	if err != nil {
		width, height = 80, 24
	}
	var b strings.Builder
	if err := draw.Top(&b, s, width, height, colours); err != nil {
		return err
	}
	text := strings.ReplaceAll(strings.TrimSuffix(b.String(), "\n"), "\n", lineEnd)
	_, err = io.WriteString(out, screenHome+text+"\x1b[K"+screenRest)
	return err
}

// Keys that mean something.
const (
	quit = 'q'
	up   = 'k'
	down = 'j'
)

// readKeys hands over the keys that mean something, until the terminal is closed
// or ctx ends.
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

// meant returns the keys among what a terminal sent: arrows come as escapes, and
// Ctrl-C as a byte.
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

// choose turns to the job above or below, and reports whether that is another.
func (t *top) choose(s *draw.Screen, key byte) bool {
	at := slices.IndexFunc(s.Jobs, func(j page.Job) bool { return j.Name == s.Shown })
	next := at + 1
	if key == up {
		next = at - 1
	}
	if at < 0 || next < 0 || next >= len(s.Jobs) {
		return false
	}
	t.job = s.Jobs[next].Name
	return true
}
