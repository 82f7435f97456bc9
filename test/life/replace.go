package life

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"syscall"
	"time"
)

// replace ends services in order, one after the other or together. Their next processes start
// half a second later.
type replace struct {
	name     string
	targets  []target
	together bool
}

func (e replace) kind() string   { return "replace " + e.name }
func (e replace) String() string { return fmt.Sprintf("replace %v", e.targets) }

// possible requires that all of them run and are ready. A service that is replaced while it
// recovers would be another event.
func (e replace) possible(l *Life) error {
	var errs []error
	for _, t := range e.targets {
		errs = append(errs, t.running(l), t.ready(l))
		if ago := time.Since(l.replaced); t.of == proxy && ago < apart {
			errs = append(errs, fmt.Errorf("a proxy was replaced %.1f s ago", ago.Seconds()))
		}
	}
	return errors.Join(errs...)
}

// apart is how long after one proxy the next may be replaced: a
// proxy that has just begun does not know yet which hosts have one.
const apart = 5 * time.Second

// happen ends the services one after the other, each when the one before is back, or all at
// once. It does no harm, unless a proxy cannot write down what is in flight.
func (e replace) happen(ctx context.Context, l *Life) error {
	if l.hasNoRoom(e.targets) {
		defer l.harms.begin(e.String()+" on a full disk", harmful{breaks: true})()
	}
	if e.together {
		if err := endTogether(l, e.targets); err != nil {
			return err
		}
	}
	for _, t := range e.targets {
		if !e.together {
			if err := t.service(l).stopService(syscall.SIGTERM, mayEndWithin); err != nil {
				return err
			}
		}
		if err := t.recover(ctx, l); err != nil {
			return err
		}
		if t.of == proxy {
			l.replaced = time.Now()
		}
	}
	return nil
}

// hasNoRoom reports whether a proxy among the services has a full disk, and so cannot hand over
// what is under way.
func (l *Life) hasNoRoom(of []target) bool {
	return slices.ContainsFunc(of, func(t target) bool { return t.of == proxy && l.full[t.host].Load() })
}

// mayEndWithin is how long a service may take to end in order: a proxy's grace, and what a busy
// machine needs beyond that.
const mayEndWithin = 40 * time.Second

// rise replaces proxies by ones that are started beside them (--replace), one host after the
// other. No connection should notice.
type rise struct{ hosts []int }

func (e rise) kind() string { return "replace by one beside" }
func (e rise) String() string {
	return fmt.Sprintf("start a proxy beside that on hosts %v, which takes its place", e.hosts)
}
func (e rise) possible(l *Life) error {
	return replace{targets: proxiesOf(e.hosts)}.possible(l)
}

// happen starts the successors. A host's proxy that does not yield within the time of a
// recovery is a failure.
func (e rise) happen(ctx context.Context, l *Life) error {
	for _, t := range proxiesOf(e.hosts) {
		s := t.service(l)
		// The old process ends when the new one asks for its turn.
		s.mayEnd()
		old := s.Current()
		if err := s.Succeed(func(cmd *exec.Cmd) { cmd.Args = append(cmd.Args, "--replace") }); err != nil {
			return err
		}
		if err := l.fleet.await(ctx, func() error {
			if s.Current() == old {
				return fmt.Errorf("the %s runs that was to be replaced", t)
			}
			return nil
		}); err != nil {
			return err
		}
		if err := t.recover(ctx, l); err != nil {
			return err
		}
		l.replaced = time.Now()
	}
	return nil
}

// proxiesOf returns the proxies of hosts.
func proxiesOf(hosts []int) (all []target) {
	for _, host := range hosts {
		all = append(all, target{proxy, host})
	}
	return all
}

// upgrade replaces agent and proxy of each host together, as the pods of a DaemonSet are
// replaced, one host after the other.
type upgrade struct{}

func (upgrade) kind() string           { return "upgrade" }
func (upgrade) String() string         { return "upgrade all hosts, one after the other" }
func (upgrade) possible(l *Life) error { return replace{targets: sidecars()}.possible(l) }

// happen replaces the hosts' services with the pause that upgrades are to keep.
func (upgrade) happen(ctx context.Context, l *Life) error {
	for host := range hostCount {
		if host > 0 && !pause(ctx, apart) {
			return nil
		}
		if err := (replace{targets: both(host), together: true}).happen(ctx, l); err != nil {
			return err
		}
	}
	return nil
}

// leave ends agents and proxies of all hosts in order and has them come back later. They come
// late to the jobs that begin meanwhile; the connections of others are made without them, or
// not until they are back.
type leave struct{ span time.Duration }

func (e leave) kind() string { return "leave and come late" }
func (e leave) String() string {
	return fmt.Sprintf("all hosts are without agent and proxy for %.1f s", e.span.Seconds())
}
func (e leave) possible(l *Life) error { return replace{targets: sidecars()}.possible(l) }

// happen ends the services and holds their restarts back for the time. Connections of jobs that
// begin meanwhile may have to wait for agents to adopt them.
func (e leave) happen(ctx context.Context, l *Life) error {
	defer l.harms.begin(e.String(), harmful{holds: true})()
	if l.hasNoRoom(sidecars()) {
		defer l.harms.begin(e.String()+" on a full disk", harmful{breaks: true})()
	}
	for _, t := range sidecars() {
		// All of them before any ends, so that none is started again in between.
		t.service(l).StayAway(true)
	}
	var errs []error
	for host := range hostCount {
		errs = append(errs, endTogether(l, both(host)))
	}
	pause(ctx, e.span)
	for _, t := range sidecars() {
		t.service(l).StayAway(false)
	}
	for _, t := range sidecars() {
		errs = append(errs, t.recover(ctx, l))
	}
	l.replaced = time.Now()
	return errors.Join(errs...)
}

// endTogether ends services in order, at the same time, and returns when all have ended.
func endTogether(l *Life, all []target) error {
	ended := make(chan error, len(all))
	for _, t := range all {
		go func() { ended <- t.service(l).stopService(syscall.SIGTERM, mayEndWithin) }()
	}
	var errs []error
	for range all {
		errs = append(errs, <-ended)
	}
	return errors.Join(errs...)
}
