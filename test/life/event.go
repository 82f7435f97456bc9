package life

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// An event is something that happens to a fleet. Its String is its line in the journal.
type event interface {
	fmt.Stringer
	// kind is the name under which such events are counted, and left out by [Config.Without].
	kind() string
	// possible returns why the event cannot happen now, nil if it can. An event that is not
	// possible is skipped.
	possible(l *Life) error
	// happen makes it happen and returns when it is over, or with what goes on in l.background.
	// It notes the harm that it does before it does it. An error means that the fleet did not
	// do what it must.
	happen(ctx context.Context, l *Life) error
}

// target is a service that something happens to.
type target struct {
	of   string // kind of service
	host int    // does not matter for the planner
}

// String returns which service it is.
func (t target) String() string {
	if t.of == planner {
		return planner
	}
	return fmt.Sprintf("%s on host%d", t.of, t.host)
}

// service returns the service itself.
func (t target) service(l *Life) *service { return l.fleet.service(t.of, t.host) }

// running returns an error if the service has no process that could be sent a signal.
func (t target) running(l *Life) error {
	if !t.service(l).Running() {
		return fmt.Errorf("%s is not running", t)
	}
	return nil
}

// ready returns an error while the service does not do all of its work.
func (t target) ready(l *Life) error {
	if t.of == planner {
		return l.fleet.plannerReady()
	}
	return l.fleet.ready(t.host)
}

// recover waits until the service has a process that is ready. It returns nil if ctx ends
// meanwhile.
func (t target) recover(ctx context.Context, l *Life) error {
	if err := l.fleet.await(ctx, func() error { return errors.Join(t.running(l), t.ready(l)) }); err != nil && ctx.Err() == nil {
		return fmt.Errorf("%s does not come back: %w", t, err)
	}
	return nil
}

// kill ends a service with SIGKILL. Another process starts half a second later.
type kill struct {
	target
	await bool // nothing else happens to services until it is back
}

func (e kill) kind() string           { return "kill " + e.of }
func (e kill) String() string         { return "kill -9 " + e.target.String() }
func (e kill) possible(l *Life) error { return e.running(l) }

// happen kills the process. Only a proxy's death breaks connections: agent and planner carry
// none. The harm lasts until the next process is ready.
func (e kill) happen(ctx context.Context, l *Life) error {
	over := l.harms.begin(e.String(), harmful{breaks: e.of == proxy})
	if err := e.service(l).killService(l); err != nil {
		return err
	}
	return l.afterwards(ctx, e.await, func(ctx context.Context) error {
		defer over()
		return e.recover(ctx, l)
	})
}

// killMany ends several services with SIGKILL, such as agent and proxy of a host, or
// everything.
type killMany struct {
	name    string
	targets []target
}

func (e killMany) kind() string         { return "kill several" }
func (e killMany) String() string       { return "kill -9 " + e.name }
func (e killMany) possible(*Life) error { return nil }

// happen kills all of them before it waits for any, since a host's agent and proxy may die
// together, with the whole host.
func (e killMany) happen(ctx context.Context, l *Life) error {
	defer l.harms.begin(e.String(), harmful{breaks: true})()
	for _, t := range e.targets {
		if err := t.service(l).killService(l); err != nil {
			return err
		}
	}
	var errs []error
	for _, t := range e.targets {
		errs = append(errs, t.recover(ctx, l))
	}
	return errors.Join(errs...)
}

// stop suspends a service's process for a while (SIGSTOP). Whoever finds it hung may end it.
type stop struct {
	target
	span time.Duration
}

func (e stop) kind() string { return "stop " + e.of }
func (e stop) String() string {
	return fmt.Sprintf("SIGSTOP %s for %.1f s", e.target, e.span.Seconds())
}
func (e stop) possible(l *Life) error { return e.running(l) }

// happen suspends and resumes the process. Connections through a stopped proxy wait; they break
// if the agent kills it meanwhile.
func (e stop) happen(ctx context.Context, l *Life) error {
	defer l.harms.begin(e.String(), harmful{breaks: e.of == proxy, holds: e.of == proxy})()
	s := e.service(l)
	// An agent kills a proxy that does not answer.
	s.mayEnd()
	p := s.Current()
	if err := p.Pause(); err != nil {
		return nil // it has ended meanwhile
	}
	pause(ctx, e.span)
	p.Resume() // it may have been ended
	return e.recover(ctx, l)
}

// afterwards calls do now, or with later events going on beside it if await is false; then a
// failure is noted when it comes. The life waits for all of them at its end.
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
