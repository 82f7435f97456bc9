package draw

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
)

// Keys turn to other jobs, scroll, sort, pause and explain themselves; an error leaves the last
// data on the screen.
func TestView(t *testing.T) {
	asked := ""
	v := &View{Every: time.Second, Fit: strings.ToUpper, Fetch: func(_ context.Context, job string) (*Screen, error) {
		s := screen()
		asked, s.Shown = job, job
		return s, nil
	}}
	m := &model{v: v, ctx: t.Context(), width: 120, height: 12}
	v.Job = "10.0.0.1:9000"
	m.Update(m.Init()())
	press := func(key tea.KeyPressMsg) tea.Cmd { _, cmd := m.Update(key); return cmd }
	see := func(what string, want bool) {
		t.Helper()
		if text := m.View().Content; strings.Contains(text, what) != want || strings.Count(text, "\n") != m.height-1 {
			t.Errorf("%q: want %v in\n%s", what, want, text)
		}
	}
	see("> 10.0.0.1:9000", true)
	see("lines 1-11 of ", true)
	m.Update(press(tea.KeyPressMsg{Code: tea.KeyDown})())
	if see("> 10.0.0.2:9000", true); asked != "10.0.0.2:9000" {
		t.Errorf("asked for %q", asked)
	}
	if press(tea.KeyPressMsg{Code: 'j', Text: "j"}) != nil {
		t.Error("there is a job below the last")
	}
	for range 9 {
		press(tea.KeyPressMsg{Code: tea.KeyPgDown})
	}
	see("host-0", true)
	see("> 10.0.0.2:9000", false)
	for range 9 {
		press(tea.KeyPressMsg{Code: tea.KeyPgUp})
	}
	for range 3 {
		press(tea.KeyPressMsg{Code: 's', Text: "s"})
	}
	see("sorted: MB/s", true)
	press(tea.KeyPressMsg{Code: 'p', Text: "p"})
	see("paused", true)
	asked = ""
	if m.Update(time.Now()); asked != "" {
		t.Error("asked while paused")
	}
	press(tea.KeyPressMsg{Code: '?', Text: "?"})
	see("pgup pgdn scroll", true)
	m.Update(fetched{err: errors.New("nobody answers")})
	see("NOBODY ANSWERS", true)
	if cmd := press(tea.KeyPressMsg{Code: 'q', Text: "q"}); cmd == nil || cmd() != tea.Quit() {
		t.Error("q does not quit")
	}
}
