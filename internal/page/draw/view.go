package draw

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"golang.org/x/term"

	"github.com/psidecar/psidecar/internal/page"
)

// A View shows the screens of psidecar top in a terminal. It is used by one goroutine.
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

// Run shows screens until the user quits or ctx ends. Keys are read from stdin if it is a
// terminal. If data cannot be fetched, the last screen stays with an error; an error of the first
// fetch is returned.
func (t *View) Run(ctx context.Context, stdin io.Reader, out *os.File) error {
	if in, ok := stdin.(*os.File); !ok || !term.IsTerminal(int(in.Fd())) {
		stdin = nil
	}
	m := &model{v: t, ctx: ctx, width: 80, height: 24}
	_, err := tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(stdin), tea.WithOutput(out), tea.WithoutSignalHandler()).Run()
	if ctx.Err() != nil || errors.Is(err, tea.ErrInterrupted) {
		return nil
	}
	return errors.Join(err, m.err)
}

// A model is the state of a view.
type model struct {
	v             *View
	ctx           context.Context
	s             *Screen // nil: nothing was fetched yet
	err           error   // of the first fetch
	width, height int
	first         int // the first line that is shown
	order         int // of orders
	paused, help  bool
}

// fetched is what Fetch has returned. ticked is set if it was asked because time had passed.
type fetched struct {
	s      *Screen
	err    error
	ticked bool
}

// orders are the orders of jobs that the key s goes through.
var orders = []struct {
	name    string
	compare func(a, b page.Job) int
}{
	{"as found", func(page.Job, page.Job) int { return 0 }},
	{"name", func(a, b page.Job) int { return cmp.Compare(titleOf(&a), titleOf(&b)) }},
	{"steps/s", func(a, b page.Job) int { return cmp.Compare(b.StepsPerSecond, a.StepsPerSecond) }},
	{"MB/s", func(a, b page.Job) int { return cmp.Compare(b.BytesPerSecond, a.BytesPerSecond) }},
}

// fetch asks for data.
func (m *model) fetch(ticked bool) tea.Cmd {
	job := m.v.Job
	return func() tea.Msg {
		s, err := m.v.Fetch(m.ctx, job)
		return fetched{s, err, ticked}
	}
}

// Init implements tea.Model.
func (m *model) Init() tea.Cmd { return m.fetch(true) }

// Update implements tea.Model.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case time.Time:
		if m.paused {
			return m, m.tick()
		}
		return m, m.fetch(true)
	case fetched:
		switch {
		case msg.err == nil:
			m.s = msg.s
		case m.s == nil:
			m.err = msg.err
			return m, tea.Quit
		default:
			m.s.Trouble = m.v.Fit(msg.err.Error())
		}
		if msg.ticked {
			return m, m.tick()
		}
	case tea.KeyPressMsg:
		return m, m.press(msg.String())
	}
	return m, nil
}

// tick is the time until data are asked for again.
func (m *model) tick() tea.Cmd {
	return tea.Tick(m.v.Every, func(t time.Time) tea.Msg { return t })
}

// press does what a key is for.
func (m *model) press(key string) tea.Cmd {
	switch key {
	case "q", "Q", "ctrl+c", "ctrl+d":
		return tea.Quit
	case "up", "k":
		return m.choose(-1)
	case "down", "j":
		return m.choose(1)
	case "pgdown", "space":
		m.first += m.height - 2
	case "pgup", "b":
		m.first -= m.height - 2
	case "s":
		m.order = (m.order + 1) % len(orders)
	case "p":
		m.paused = !m.paused
	case "?", "h":
		m.help = !m.help
	}
	return nil
}

// choose selects the job above or below the shown one, if there is one.
func (m *model) choose(by int) tea.Cmd {
	if m.s == nil {
		return nil
	}
	jobs := m.sorted().Jobs
	at := slices.IndexFunc(jobs, func(j page.Job) bool { return j.Name == m.s.Shown })
	if next := at + by; at >= 0 && next >= 0 && next < len(jobs) {
		m.v.Job, m.first = jobs[next].Name, 0
		return m.fetch(false)
	}
	return nil
}

// sorted returns the screen with its jobs in the order that was chosen.
func (m *model) sorted() *Screen {
	s := *m.s
	s.Jobs = slices.Clone(s.Jobs)
	slices.SortStableFunc(s.Jobs, orders[m.order].compare)
	return &s
}

// View implements tea.Model: as many lines as fit, and the keys below.
func (m *model) View() tea.View {
	var text string
	if m.s != nil {
		var b strings.Builder
		_ = Top(&b, m.sorted(), m.width, m.v.Colours) // a strings.Builder takes all
		lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
		room := max(m.height-1, 1)
		m.first = max(min(m.first, len(lines)-room), 0)
		last := min(m.first+room, len(lines))
		text = strings.Join(lines[m.first:last], "\n") + "\n" + cut(m.foot(m.first+1, last, len(lines)), m.width)
	}
	v := tea.NewView(text)
	v.AltScreen = true
	return v
}

// foot returns the last line: which lines are shown, and the keys.
func (m *model) foot(first, last, all int) string {
	if m.help {
		return "↑ ↓ job  pgup pgdn scroll  s sort  p pause  q quit  ? less"
	}
	paused := ""
	if m.paused {
		paused = "  paused"
	}
	return fmt.Sprintf("lines %d-%d of %d  sorted: %s%s  ? help  q quit", first, last, all, orders[m.order].name, paused)
}
