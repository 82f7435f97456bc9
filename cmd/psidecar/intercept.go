package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/agent"
	"github.com/psidecar/psidecar/agent/discover"
	"github.com/psidecar/psidecar/agent/listeners"
	"github.com/psidecar/psidecar/bpf/redirect"
	"github.com/psidecar/psidecar/proxy/handover"
)

// interceptFlags are what whoever has jobs' connections intercepted can be
// told.
type interceptFlags struct {
	on      bool
	dir     string
	socket  string // empty: the proxy is in this process
	uid     int
	grace   time.Duration
	hang    time.Duration
	mesh    uint16 // port; 0: none
	exclude []uint
}

// intercepting has the flags of what is redirected.
func (f *interceptFlags) intercepting(cmd *cobra.Command, on bool) {
	flags := cmd.Flags()
	flags.BoolVar(&f.on, "intercept", on, "send the connections of jobs to the host's proxy")
	flags.UintSliceVar(&f.exclude, "intercept-exclude", nil, "ports whose connections are never intercepted")
	flags.StringVar(&f.dir, "bpf-dir", redirect.DefaultDir, "folder in a BPF file system in which the redirecting programs are pinned")
}

// handing has the flags of how a proxy in another process gets its listeners.
func (f *interceptFlags) handing(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.socket, "proxy-socket", handover.DefaultSocket, "unix socket at which the proxy gets its listeners")
	flags.IntVar(&f.uid, "proxy-uid", 0, "user that the proxy runs as; root and the agent's own are allowed too")
	flags.Uint16Var(&f.mesh, "mesh-port", 9814, "the proxies' --mesh-port: opened for them in the network namespaces of jobs that are not the agent's, such as pods'; 0: not")
	flags.DurationVar(&f.hang, "proxy-hang-after", 2*time.Second, "how long a proxy may leave the agent's questions unanswered before it is killed, so that whoever started it starts another; 0: it never is")
	flags.DurationVar(&f.grace, "proxy-grace", 3*time.Second, "how long connections wait for another proxy when one has gone, before they go direct")
}

// interception has connects redirected while an agent runs.
type interception struct {
	flags     *interceptFlags
	redirect  *redirect.Redirect
	listeners *listeners.Listeners
	found     chan *discover.Snapshot // the latest
	ended     chan lastPush           // for the proxies
	// ours, where not nil, knows the sockets of a proxy in this process.
	ours func(cookie uint64, local, peer netip.AddrPort) bool
}

// open loads what is needed; with it the agent tells what it finds. Where
// nothing is to be intercepted it returns nil.
func (f *interceptFlags) open(opts *agent.Options) (_ *interception, err error) {
	if !f.on {
		return nil, nil
	}
	var exclusions []redirect.Exclusion
	for _, port := range f.exclude {
		if port == 0 || port > 65535 {
			return nil, usagef("--intercept-exclude %d: want ports, 1 to 65535", port)
		}
		exclusions = append(exclusions, redirect.Exclusion{Port: uint16(port)})
	}
	i := &interception{flags: f, found: make(chan *discover.Snapshot, 1), ended: make(chan lastPush, mostEnded)}
	if i.redirect, err = redirect.Open(redirect.Options{Dir: f.dir}); err != nil {
		return nil, fmt.Errorf("--intercept: %w (psidecar doctor tells what is missing)", err)
	}
	err = i.redirect.SetExclusions(exclusions)
	if err == nil {
		i.listeners, err = listeners.New(listeners.Options{Redirect: i.redirect, Socket: f.socket, NoSocket: f.socket == "", UID: f.uid, Grace: f.grace, HangAfter: f.hang, MeshPort: f.mesh})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("--intercept: %w", err), i.redirect.Close())
	}
	opts.Found = i.tell
	opts.Route = i.route
	opts.LastPush = i.lastPush
	opts.Carried.Proxies = i.listeners.Proxies
	opts.Saved = i.listeners.Carried
	opts.Collectors = append(opts.Collectors, i.listeners)
	return i, nil
}

// route is an [observe.Route].
func (i *interception) route(cookie uint64, local, peer netip.AddrPort) (to netip.AddrPort, follow bool) {
	if to, ok := i.redirect.Destination(cookie); ok {
		return to, true
	}
	if i.listeners.At(local) || i.listeners.At(peer) || i.ours != nil && i.ours(cookie, local, peer) {
		return netip.AddrPort{}, false
	}
	return peer, true
}

// tell keeps the latest snapshot for run, which may be busy; it is called from
// one goroutine.
func (i *interception) tell(s *discover.Snapshot) {
	select {
	case <-i.found:
	default:
	}
	i.found <- s
}

// lastPush is of a worker that has told its scheduler past the proxy that it pushes no
// more.
type lastPush struct {
	scheduler netip.AddrPort
	node      int32
}

// mostEnded is of how many workers the proxies wait to be told at most.
const mostEnded = 1024

// lastPush keeps what the proxies are to be told; whoever calls it must not wait.
func (i *interception) lastPush(scheduler netip.AddrPort, node int32) {
	select {
	case i.ended <- lastPush{scheduler, node}:
	default:
		slog.Warn("the proxy is not told of a worker's last push: too many end at a time", "job", scheduler, "node", node)
	}
}

// tellEnded passes on what lastPush keeps.
func (i *interception) tellEnded(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case w := <-i.ended:
			i.listeners.TellLastPush(w.scheduler.String(), w.node)
		}
	}
}

// run serves proxies until ctx ends; close is the caller's.
func (i *interception) run(ctx context.Context, opts agent.Options) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return i.listeners.Run(ctx, false) })
	g.Go(func() error { i.follow(ctx, opts); return nil })
	g.Go(func() error { i.tellEnded(ctx); return nil })
	return g.Wait()
}

func (i *interception) follow(ctx context.Context, opts agent.Options) {
	named := namedGroups(opts)
	told := map[int]bool{}
	var before string
	reconcile := func(all []listeners.Process) {
		now := ""
		if err := i.listeners.Reconcile(append(all, named...)); err != nil && ctx.Err() == nil {
			if now = err.Error(); now != before {
				slog.Warn("not all jobs' connections are intercepted", "error", err)
			}
		}
		before = now
	}
	if len(named) > 0 {
		reconcile(nil)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-i.found:
			all, left := listeners.Discovered(s, opts.Proc, opts.CgroupRoot)
			for _, p := range left {
				if !told[p.PID] && len(told) < 1024 {
					told[p.PID] = true
					slog.Warn("connections are not intercepted: the process must be in a cgroup v2 below the root, and use TCP", "pid", p.PID, "cgroup", p.Cgroup)
				}
			}
			inNamed(all, named)
			reconcile(all)
		}
	}
}

// namedGroups are the cgroups of --cgroup, in the agent's own network
// namespace: there connections are intercepted from the first one on, before
// any process is found.
func namedGroups(opts agent.Options) (named []listeners.Process) {
	for _, group := range opts.Cgroups {
		path := group
		if below := filepath.Join(opts.CgroupRoot, group); !strings.HasPrefix(group, opts.CgroupRoot) {
			if _, err := os.Stat(below); err == nil {
				path = below
			}
		}
		named = append(named, listeners.Process{Cgroup: path, Netns: "/proc/self/ns/net"})
	}
	return named
}

// inNamed gives processes below a named cgroup that one: groups do not nest.
func inNamed(all, named []listeners.Process) {
	for i := range all {
		for _, n := range named {
			if strings.HasPrefix(all[i].Cgroup+"/", strings.TrimSuffix(n.Cgroup, "/")+"/") {
				all[i].Cgroup = n.Cgroup
			}
		}
	}
}

// abandon undoes open, where run is not to be called.
func (i *interception) abandon() error {
	if i == nil {
		return nil
	}
	return errors.Join(i.listeners.Close(), i.close())
}

// close leaves nothing in the kernel, but for jobs whose connections must not go
// direct. Nobody may ask for a route any more.
func (i *interception) close() error {
	groups, err := i.redirect.Groups()
	for _, g := range groups {
		if g.Policy.FailClosed {
			slog.Warn("left in the kernel, because keys of the job are displaced: psidecar restore, then psidecar unload", "cgroup", g.Cgroup)
			return errors.Join(err, i.redirect.Close())
		}
	}
	err = errors.Join(err, i.redirect.Close())
	if _, gone := redirect.Unload(i.flags.dir); gone != nil {
		err = errors.Join(err, fmt.Errorf("unloading: %w", gone))
	}
	return err
}
