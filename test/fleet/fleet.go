package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// Options say which fleet, and for how long.
type Options struct {
	Hosts int // each has a server and a worker of every job
	Jobs  int
	// Keys is how many each job has. Dense: neighbours are neighbours, and each
	// server has as many; else they are hashed to 64 bits.
	Keys  uint64
	Dense bool
	// Zipf is the exponent by which all workers draw from all keys, above 1.
	Zipf float64
	// Hot is how many keys each worker uses most, alone; Shared how many of a job's
	// most used ones all use in every window.
	Hot, Shared int
	// Window is how many keys a worker uses between two windows.
	Window int
	// Every is how often agents report.
	Every time.Duration
	// Warm is for how long the fleet runs before anything is measured, During for
	// how long the planner's load is.
	Warm, During time.Duration
	// Shifts is how many times one part in ShiftPart of the hosts turn to each
	// other's keys.
	Shifts, ShiftPart int
	// Away is for how long the planner is gone after kill -9; 0: it is not killed.
	Away time.Duration
	// Patience is for how long plans and hosts are waited for.
	Patience time.Duration
	Seed     uint64
	// Say is told what is going on.
	Say func(string)
}

// defaults are the command's.
var defaults = Options{
	Hosts: 100, Jobs: 2, Keys: 1e9, Zipf: 1.1, Hot: 400, Shared: 64, Window: 8192, Every: time.Second,
	Warm: 30 * time.Second, During: 30 * time.Second, Shifts: 2, ShiftPart: 10, Away: 3 * time.Second, Patience: time.Minute, Seed: 1,
}

// Check says what is wrong with the options; names are those of the flags.
func (o *Options) Check() error {
	switch {
	case o.Hosts < 2 || o.Hosts > 4096:
		return fmt.Errorf("--hosts %d: want 2 to 4096", o.Hosts)
	case o.Jobs < 1 || o.Jobs > 16:
		return fmt.Errorf("--jobs %d: want 1 to 16", o.Jobs)
	case o.Zipf <= 1:
		return fmt.Errorf("--zipf %v: want more than 1", o.Zipf)
	case o.Hot < 1 || o.Window < o.Hot+o.Shared:
		return fmt.Errorf("--hot %d, --shared %d: want 1 or more, and no more together than --window %d", o.Hot, o.Shared, o.Window)
	case o.Keys < uint64(o.Hosts)*uint64(o.Hot)+uint64(o.Shared):
		return fmt.Errorf("--keys %d: %d hosts use %d each alone", o.Keys, o.Hosts, o.Hot)
	case o.Every < 100*time.Millisecond:
		return fmt.Errorf("--every %v: want 100ms or more", o.Every)
	case o.ShiftPart < 1:
		return fmt.Errorf("--shift-part %d: want 1 or more", o.ShiftPart)
	}
	return nil
}

// A Fleet is hosts that report to a planner and follow it.
type Fleet struct {
	opts    Options
	planner *Planner
	jobs    []*job
	hosts   []*host
	wire    wire
	held    atomic.Bool  // no move begins
	moving  atomic.Int64 // batches that have begun and not ended
}

// play starts a planner by the command line program, plays the fleet to it and measures both.
// State of the planner is in dir. With an error comes what was measured before it, if anything.
func play(ctx context.Context, program []string, dir string, o Options) (*Result, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	p, err := newPlanner(program, filepath.Join(dir, "planner.db"))
	if err != nil {
		return nil, err
	}
	if err := p.start(ctx); err != nil {
		return nil, err
	}
	defer p.kill()
	f := &Fleet{opts: o, planner: p}
	for i := range o.Jobs {
		f.jobs = append(f.jobs, newJob(i, &f.opts))
	}
	for i := range o.Hosts {
		f.hosts = append(f.hosts, newHost(f, i))
	}
	ctx, cancel := context.WithCancel(ctx)
	g, ctx := errgroup.WithContext(ctx)
	for _, h := range f.hosts {
		g.Go(func() error { return h.play(ctx) })
	}
	r, err := f.measure(ctx)
	cancel()
	if ended := g.Wait(); ended != nil && !errors.Is(ended, context.Canceled) {
		err = cmp.Or(err, ended)
	}
	return r, err
}

// measure is the course of events.
func (f *Fleet) measure(ctx context.Context) (*Result, error) {
	o := &f.opts
	r := &Result{Hosts: o.Hosts, Jobs: o.Jobs, Keys: o.Keys, Dense: o.Dense, Every: o.Every.Seconds(), Hot: o.Hot, Window: o.Window}
	began := time.Now()
	if err := f.until(ctx, "all hosts to be known", func() bool { return f.greeted(began) == len(f.hosts) }); err != nil {
		return r, err
	}
	r.Start = spanOf(f.greetings(began))
	o.Say(fmt.Sprintf("%d hosts came within %.1f s; %v to warm up", o.Hosts, r.Start.Last, o.Warm))
	if err := pause(ctx, o.Warm); err != nil {
		return r, err
	}
	o.Say(fmt.Sprintf("the planner's load for %v", o.During))
	load, err := f.load(ctx, o.During)
	if err != nil {
		return r, err
	}
	r.Steady = *load
	for n := range o.Shifts {
		o.Say(fmt.Sprintf("shift %d of %d", n+1, o.Shifts))
		s, err := f.shift(ctx)
		if s != nil {
			r.Shifts = append(r.Shifts, *s)
		}
		if err != nil {
			return r, err
		}
	}
	usage, err := f.planner.usage()
	if err != nil {
		return r, err
	}
	r.PeakBytes = usage.peak
	if o.Away > 0 {
		o.Say(fmt.Sprintf("kill -9 of the planner, which is gone for %v", o.Away))
		if r.Restart, err = f.restart(ctx); err != nil {
			return r, err
		}
	}
	if usage, err = f.planner.usage(); err != nil {
		return r, err
	}
	r.PeakBytes = max(r.PeakBytes, usage.peak)
	return r, nil
}

// until waits until something is so.
func (f *Fleet) until(ctx context.Context, what string, ok func() bool) error {
	for end := time.Now().Add(f.opts.Patience); !ok(); {
		if err := f.planner.ended(); err != nil {
			return fmt.Errorf("waiting for %s: %w", what, err)
		}
		if time.Now().After(end) {
			return fmt.Errorf("waiting for %s: not so within %v (--patience)%s", what, f.opts.Patience, f.troubles())
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
