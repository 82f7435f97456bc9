package life

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// An event is something that happens to a fleet.
type event interface {
	fmt.Stringer
	// kind is what such events are counted under.
	kind() string
	// possible is an error where the event cannot happen now, and why.
	possible(l *Life) error
	// happen has it happen. An error says that the fleet did not do what it must.
	happen(ctx context.Context, l *Life) error
}

// target is a service that something happens to.
type target struct {
	of   string // kind of service
	host int    // does not matter for the planner
}

func (t target) String() string {
	if t.of == planner {
		return planner
	}
	return fmt.Sprintf("%s on host%d", t.of, t.host)
}

func (t target) service(l *Life) *service { return l.fleet.service(t.of, t.host) }

// running is an error where the service has no process that could be told
// something.
func (t target) running(l *Life) error {
	if !t.service(l).Running() {
		return fmt.Errorf("%s is not running", t)
	}
	return nil
}

// ready is an error while the service does not do all of its work.
func (t target) ready(l *Life) error {
	if t.of == planner {
		return l.fleet.plannerReady()
	}
	return l.fleet.ready(t.host)
}

// recover waits until the service has another process than before, which is
// ready.
func (t target) recover(ctx context.Context, l *Life) error {
	if err := l.fleet.await(ctx, func() error { return errors.Join(t.running(l), t.ready(l)) }); err != nil && ctx.Err() == nil {
		return fmt.Errorf("%s does not come back: %w", t, err)
	}
	return nil
}

// kill ends a service at once. Another comes half a second later.
type kill struct {
	target
	await bool // nothing else happens to services until it is back
}

func (e kill) kind() string           { return "kill " + e.of }
func (e kill) String() string         { return "kill -9 " + e.target.String() }
func (e kill) possible(l *Life) error { return e.running(l) }
func (e kill) happen(ctx context.Context, l *Life) error {
	over := l.harms.begin(e.String(), harmful{breaks: e.of == proxy})
	if err := e.service(l).stopService(syscall.SIGKILL, time.Minute); err != nil {
		return err
	}
	return l.afterwards(ctx, e.await, func(ctx context.Context) error {
		defer over()
		return e.recover(ctx, l)
	})
}

// killHost ends agent and proxy of a host at once, killAll everything.
type killMany struct {
	name    string
	targets []target
}

func (e killMany) kind() string         { return "kill several" }
func (e killMany) String() string       { return "kill -9 " + e.name }
func (e killMany) possible(*Life) error { return nil }
func (e killMany) happen(ctx context.Context, l *Life) error {
	defer l.harms.begin(e.String(), harmful{breaks: true})()
	for _, t := range e.targets {
		if err := t.service(l).stopService(syscall.SIGKILL, time.Minute); err != nil {
			return err
		}
	}
	var errs []error
	for _, t := range e.targets {
		errs = append(errs, t.recover(ctx, l))
	}
	return errors.Join(errs...)
}

// stop stops a service's process for a while (SIGSTOP). Whoever finds it hung may
// end it.
type stop struct {
	target
	span time.Duration
}

func (e stop) kind() string { return "stop " + e.of }
func (e stop) String() string {
	return fmt.Sprintf("SIGSTOP %s for %.1f s", e.target, e.span.Seconds())
}
func (e stop) possible(l *Life) error { return e.running(l) }
func (e stop) happen(ctx context.Context, l *Life) error {
	defer l.harms.begin(e.String(), harmful{breaks: e.of == proxy, holds: e.of == proxy})()
	s := e.service(l)
	s.mayEnd()
	p := s.Current()
	if err := p.Pause(); err != nil {
		return nil // it has ended meanwhile
	}
	pause(ctx, e.span)
	p.Resume() // it may have been ended
	return e.recover(ctx, l)
}

// afterwards does something now, or while other things happen. A failure of what
// is not waited for is noted when it comes.
func (l *Life) afterwards(ctx context.Context, await bool, do func(context.Context) error) error {
	if await {
		return do(ctx)
	}
	l.background.Go(func() {
		if err := do(ctx); err != nil && ctx.Err() == nil {
			l.journal.fail("%v", err)
		}
	})
	return nil
}
