package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
)

// greeted returns how many hosts the planner has answered since some time.
func (f *Fleet) greeted(since time.Time) int { return len(f.greetings(since)) }

// greetings returns after how many seconds each was, as far as it was.
func (f *Fleet) greetings(since time.Time) (after []float64) {
	for _, h := range f.hosts {
		if at := h.since(since); !at.IsZero() {
			after = append(after, at.Sub(since).Seconds())
		}
	}
	slices.Sort(after)
	return after
}

// spanOf says when the first, half and the last of some were.
func spanOf(sorted []float64) Span {
	if len(sorted) == 0 {
		return Span{}
	}
	return Span{First: sorted[0], Half: sorted[len(sorted)/2], Last: sorted[len(sorted)-1]}
}

// troubles says what hosts were told that have not been answered, and how many.
func (f *Fleet) troubles() string {
	counts := map[string]int{}
	for _, h := range f.hosts {
		for _, t := range h.troubles() {
			counts[t]++
		}
	}
	text := ""
	for i, t := range slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	}) {
		if i == 5 {
			text += "; and others"
			break
		}
		text += fmt.Sprintf("; %d hosts: %s", counts[t], t)
	}
	return text
}

// load measures what the planner takes.
func (f *Fleet) load(ctx context.Context, during time.Duration) (*Load, error) {
	before, err := f.planner.usage()
	if err != nil {
		return nil, err
	}
	sent, received, began := f.wire.sent.Load(), f.wire.received.Load(), time.Now()
	reports := f.reports()
	if err := pause(ctx, during); err != nil {
		return nil, err
	}
	after, err := f.planner.usage()
	if err != nil {
		return nil, err
	}
	seconds := time.Since(began).Seconds()
	return &Load{
		Seconds: seconds, Cores: (after.cpu - before.cpu).Seconds() / seconds, ResidentBytes: after.resident,
		InPerSecond: float64(f.wire.sent.Load()-sent) / seconds, OutPerSecond: float64(f.wire.received.Load()-received) / seconds,
		ReportsPerSecond: float64(f.reports()-reports) / seconds,
	}, nil
}

// reports is how many the planner has taken.
func (f *Fleet) reports() (n uint64) {
	for _, h := range f.hosts {
		n += h.link.State().Reports
	}
	return n
}

// least is the oldest version of a job's plan that a proxy has.
func (f *Fleet) least(j *job) uint64 {
	least := f.hosts[0].proxy.version(j.name)
	for _, h := range f.hosts[1:] {
		least = min(least, h.proxy.version(j.name))
	}
	return least
}

// shift has hosts use each other's keys, and measures when plans for these are at
// all proxies.
func (f *Fleet) shift(ctx context.Context) (*Shift, error) {
	before, err := f.planner.usage()
	if err != nil {
		return nil, err
	}
	hosts := max(f.opts.Hosts/f.opts.ShiftPart, 2)
	began := time.Now()
	all := 0
	for _, j := range f.jobs {
		j.shift(hosts)
		all += hosts * f.opts.Hot
	}
	for _, h := range f.hosts[:hosts] {
		h.agent.turn()
	}
	s := &Shift{Hosts: hosts, Keys: all}
	for end := began.Add(f.opts.Patience); time.Now().Before(end) && s.Most == 0; {
		if err := f.planner.ended(); err != nil {
			return nil, err
		}
		known, first := 0, false
		for _, j := range f.jobs {
			n, some := j.known(f.least(j))
			known, first = known+n, first || some
		}
		now := time.Since(began).Seconds()
		s.Known = known
		if first && s.First == 0 {
			s.First = now
		}
		if 2*known >= all && s.Half == 0 {
			s.Half = now
		}
		if 10*known >= 9*all {
			s.Most = now
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return nil, err
		}
	}
	after, err := f.planner.usage()
	if err != nil {
		return nil, err
	}
	s.Cores = (after.cpu - before.cpu).Seconds() / time.Since(began).Seconds()
	if s.First == 0 {
		return s, fmt.Errorf("no plan for keys that are used elsewhere was at all proxies within %v (--patience)%s", f.opts.Patience, f.troubles())
	}
	return s, nil
}

// known returns how many of the keys that hosts turned to are known to be there by
// who has this version, and whether the first plan for them is.
func (j *job) known(version uint64) (keys int, first bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i, r := range j.records {
		if r.version <= version {
			keys += r.keys
			first = first || i == 0
		}
	}
	return keys, first
}

// restart kills the planner and starts it again.
func (f *Fleet) restart(ctx context.Context) (*Restart, error) {
	before, err := f.settle(ctx)
	if err != nil {
		return nil, err
	}
	defer f.held.Store(false)
	f.planner.kill()
	if err := pause(ctx, f.opts.Away); err != nil {
		return nil, err
	}
	for _, h := range f.hosts {
		h.mark()
	}
	sent, received, began := f.wire.sent.Load(), f.wire.received.Load(), time.Now()
	if err := f.planner.start(ctx); err != nil {
		return nil, err
	}
	if err := f.until(ctx, "all hosts to come back", func() bool { return f.greeted(began) == len(f.hosts) }); err != nil {
		return nil, fmt.Errorf("%w: %d of %d have", err, f.greeted(began), len(f.hosts))
	}
	used, err := f.planner.usage()
	if err != nil {
		return nil, err
	}
	r := &Restart{Back: spanOf(f.greetings(began)), InBytes: f.wire.sent.Load() - sent, OutBytes: f.wire.received.Load() - received, CPUSeconds: used.cpu.Seconds()}
	r.BusiestSecond, r.Connections = f.wire.busiest(began)
	after, err := f.whole(ctx)
	if err != nil {
		return nil, err
	}
	copies, ok := f.agreed()
	r.Same = ok && maps.Equal(before, after) && maps.Equal(before, copies)
	return r, nil
}
