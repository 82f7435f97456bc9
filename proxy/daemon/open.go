package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/proxy"
)

// Listen opens a listener at the address that a flag gives. Its owner closes the listeners,
// also after an error of Open.
type Listen func(flag, address string) (net.Listener, error)

// Open makes a daemon with what the settings name: listeners, routing and planner; o has
// everything else.
func (f *Settings) Open(ctx context.Context, o Options, listen Listen) (*Daemon, error) {
	var err error
	if o.Forward, err = f.forwards(listen); err != nil {
		return nil, err
	}
	if o.Mesh, err = f.meshListeners(listen); err != nil {
		return nil, err
	}
	if o.Routing, err = f.routed(); err != nil {
		return nil, err
	}
	if o.Rules, err = f.rules(); err != nil {
		return nil, err
	}
	d, err := New(ctx, o)
	if err == nil && onDisk(f.Routing.Dir) {
		slog.Warn("the state directory is on a disk: messages wait for it whenever it stalls; use a directory in memory (tmpfs), such as the default", "state_dir", f.Routing.Dir)
	}
	return d, err
}

// onDisk reports whether a state folder, or the folder in which it will be made, is in a file
// system that is not known to be in memory. The files there are written while messages wait, and
// need not survive the machine.
func onDisk(dir string) bool {
	for dir != "" {
		var s unix.Statfs_t
		err := unix.Statfs(dir, &s)
		if err == nil {
			return s.Type != unix.TMPFS_MAGIC && s.Type != unix.RAMFS_MAGIC
		}
		above := filepath.Dir(dir)
		if !errors.Is(err, unix.ENOENT) || above == dir {
			return false
		}
		dir = above
	}
	return false
}

// rules returns the planner whose rules for values are followed, or nil.
func (f *Settings) rules() (p *Planner, err error) {
	r := &f.Routing
	if r.Planner == "" {
		return nil, nil
	}
	p = &Planner{Address: r.Planner}
	if p.Credentials, err = r.Credentials(); err != nil {
		return nil, err
	}
	// The planner shows this host by that name, and reports on codecs are listed under it.
	p.Host, err = cli.HostName(r.Host)
	return p, err
}

// forwards opens the listeners of --forward. It returns those that it has opened only where
// all could be; Listen's owner closes them in any case.
func (f *Settings) forwards(listen Listen) ([]proxy.Listener, error) {
	var all []proxy.Listener
	for _, pair := range f.Forward {
		at, to, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, cli.Usagef("--forward %q: want LISTEN=DEST, each host:port", pair)
		}
		// Resolved once, at the start: a listener has one destination as long as it lasts.
		destination, err := net.ResolveTCPAddr("tcp", to)
		if err == nil && (destination.IP == nil || destination.Port == 0) {
			err = errors.New("want host:port")
		}
		if err != nil {
			return nil, cli.Usagef("--forward %q: destination %q: %w", pair, to, err)
		}
		l, err := listen("--forward", at)
		if err != nil {
			return nil, err
		}
		// IPv4-mapped addresses are unmapped, so that hosts are compared as links have them.
		ap := destination.AddrPort()
		slog.Info("forwarding", "from", l.Addr(), "to", ap)
		all = append(all, proxy.Listener{Listener: l, Destination: proxy.Fixed(netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()))})
	}
	return all, nil
}

// meshListeners opens the listeners for links.
func (f *Settings) meshListeners(listen Listen) ([]net.Listener, error) {
	addrs := f.Mesh
	// The default: one listener at all addresses of this process's namespace. The agent opens
	// those in pods.
	if len(addrs) == 0 && f.MeshPort != 0 {
		addrs = []string{fmt.Sprintf(":%d", f.MeshPort)}
	}
	var all []net.Listener
	for _, addr := range addrs {
		l, err := listen("--mesh-listen", addr)
		if err != nil {
			return nil, err
		}
		slog.Info("accepting links", "at", l.Addr(), "tls", f.TLS.Cert != "")
		all = append(all, l)
	}
	return all, nil
}
