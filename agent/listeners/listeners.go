// Package listeners is the privileged half of interception: it has the connects
// of jobs redirected (bpf/redirect), opens the listeners to which they go
// inside the jobs' network namespaces, and hands those to a proxy that has no
// privileges (proxy/handover).
//
// In come the processes that should be served, the whole of them each time
// ([Listeners.Reconcile]), and proxies on a unix socket ([Listeners.Run]); out
// go listeners. While no proxy is there nothing is redirected: its listeners
// are kept for a while, in which connects wait in their queues for the next
// proxy, then closed. The agent calls it.
package listeners

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/psidecar/psidecar/bpf/redirect"
	"github.com/psidecar/psidecar/proxy/handover"
	"github.com/psidecar/psidecar/proxy/reason"
)

// Options of a Listeners.
type Options struct {
	Redirect *redirect.Redirect
	// Socket is where proxies come; empty means [handover.DefaultSocket]. Its
	// folder is made where it is not there.
	Socket string
	// NoSocket opens none: the proxy is in this process, see
	// [Listeners.Connect].
	NoSocket bool
	// UID is the user that proxies run as; root and this process's own user
	// are served too. The socket becomes that user's.
	UID int
	// MeshPort is opened for the links of other hosts' proxies in each job's
	// network namespace that is not this process's: jobs with addresses of
	// their own, such as those of pods, are reached at these. 0: nowhere.
	MeshPort uint16
	// OwnCgroup is the folder of the cgroup v2 of this process; empty: as
	// /proc/self/cgroup says.
	OwnCgroup string
	// Grace is how long listeners are kept without a proxy; 0 means 3 s.
	Grace time.Duration
	// Patience is how long a proxy may leave pings unanswered before it counts
	// as gone; 0 means 5 s.
	Patience time.Duration
	// HangAfter is how long a proxy of another process may leave pings
	// unanswered before it is ended; 0: it never is.
	HangAfter time.Duration
}

// Listeners serves the proxies of a host.
type Listeners struct {
	opts     Options
	mark     uint32
	home     uint64 // inode of this process's network namespace
	log      *slog.Logger
	tells    bool              // the kernel reports which cgroup listens where
	leaving  chan struct{}     // closed when this agent is about to end
	over     chan struct{}     // closed when it serves no proxy any more
	incoming *net.UnixListener // nil: none
	attended sync.WaitGroup    // proxies

	mu         sync.Mutex    // guards the rest but strangers, which have a lock of their own
	wanted     []Process     // of jobs, as they were found last
	news       chan struct{} // closed when wanted is next judged
	reconciled bool          // once at least
	groups     map[string]redirect.GroupID
	open       map[place]*opened
	titles     map[titled]handover.Title // what the proxies know jobs by; at most maxTitles
	mesh       map[uint64]*opened        // by the namespace's inode
	proxies    map[*handover.Conn]bool   // whether it takes more connections
	linking    map[*handover.Conn]bool   // proxies that take mesh listeners
	yields     map[*handover.Conn]bool   // proxies that end when they are asked to
	next       *successor                // a proxy that waits for its turn; nil: none
	// closing is which groups each proxy wants to fail closed.
	closing map[*handover.Conn]map[redirect.GroupID]bool
	without *time.Timer // runs while there is no proxy
	nextID  uint64
	closed  bool
	ending  limit

	carried   carried
	kept      kept
	hung      hung
	strangers strangers
}

// New opens the socket for proxies. Close, or the end of Run, closes it.
func New(o Options) (*Listeners, error) {
	if o.Socket == "" {
		o.Socket = handover.DefaultSocket
	}
	if o.Grace == 0 {
		o.Grace = 3 * time.Second
	}
	if o.Patience == 0 {
		o.Patience = 5 * time.Second
	}
	mark, err := o.Redirect.Mark()
	if err != nil {
		return nil, err
	}
	if o.OwnCgroup == "" {
		if o.OwnCgroup, err = ownCgroup(); err != nil {
			return nil, err
		}
	}
	// A connection belongs to the cgroup of the process that opened its listener.
	if err := o.Redirect.AttachProxy(o.OwnCgroup); err != nil {
		return nil, fmt.Errorf("having original destinations told: %w", err)
	}
	own, home, err := openNetns("/proc/self/ns/net")
	if err != nil {
		return nil, err
	}
	own.Close()
	var incoming *net.UnixListener
	if !o.NoSocket {
		if incoming, err = listenUnix(o.Socket, o.UID); err != nil {
			return nil, fmt.Errorf("opening the socket for proxies: %w", err)
		}
	}
	untold := tellsOwners()
	if untold != nil {
		slog.Warn("proxies cannot be told which ports are those of jobs, and let other hosts' proxies reach all", "error", untold)
	}
	return &Listeners{
		kept: kept{most: affordableKept()},
		opts: o, tells: untold == nil, mark: mark, home: home, news: make(chan struct{}), leaving: make(chan struct{}), over: make(chan struct{}), yields: map[*handover.Conn]bool{}, mesh: map[uint64]*opened{}, linking: map[*handover.Conn]bool{}, closing: map[*handover.Conn]map[redirect.GroupID]bool{}, log: slog.Default(), incoming: incoming,
		groups: map[string]redirect.GroupID{}, open: map[place]*opened{}, titles: map[titled]handover.Title{}, proxies: map[*handover.Conn]bool{},
		nextID: uint64(time.Now().UnixNano()), // not those of an agent before
	}, nil
}

// listenUnix opens the socket at which proxies come, for a user alone. A socket that
// another agent still answers at is left alone; one of an agent that was killed is
// replaced.
func listenUnix(socket string, uid int) (*net.UnixListener, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return nil, err
	}
	if err := giveState(filepath.Join(filepath.Dir(socket), "state"), uid); err != nil {
		return nil, err
	}
	if c, err := net.Dial("unixpacket", socket); err == nil {
		c.Close()
		return nil, fmt.Errorf("%s: another agent answers there", socket)
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err // of an agent that was killed
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.Chmod(socket, 0o600), os.Chown(socket, uid, -1)); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// giveState makes the folder in which a proxy of another user keeps what it must
// know after it was killed: beside the socket, where that user may not.
func giveState(dir string, uid int) error {
	if uid == 0 || uid == os.Geteuid() {
		return nil
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.Lchown(dir, uid, -1)
}

// ownCgroup is the folder of this process's cgroup v2.
func ownCgroup() (string, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", fmt.Errorf("looking for this process's cgroup: %w", err)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", fmt.Errorf("looking for cgroup v2: %w", err)
	}
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if len(f) < 3 || f[2] != "cgroup2" {
			continue
		}
		for entry := range strings.Lines(string(text)) {
			if path, ok := strings.CutPrefix(strings.TrimSpace(entry), "0::"); ok {
				return filepath.Join(f[1], path), nil
			}
		}
	}
	return "", errors.New("this process is in no cgroup v2 (psidecar doctor tells what to do)")
}

// At reports whether one of the listeners is at that address, in any network
// namespace.
func (l *Listeners) At(a netip.AddrPort) bool {
	if !a.Addr().IsLoopback() {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range l.open {
		for _, s := range o.sockets {
			if s.at == a {
				return true
			}
		}
	}
	return false
}

// Run serves proxies until ctx ends. Then it closes the listeners; with keep
// proxies go on with their copies, else connects go direct, or fail where their
// group fails closed. The pinned programs stay, see [redirect.Unload].
func (l *Listeners) Run(ctx context.Context, keep bool) error {
	err := l.accept(ctx)
	err = errors.Join(err, l.closeListeners(keep))
	l.attended.Wait()
	return err
}

// accept serves proxies until ctx ends, and then for up to keptFor more as long as
// connections are held here: a new proxy must be able to fetch them.
func (l *Listeners) accept(ctx context.Context) error {
	if l.incoming == nil {
		<-ctx.Done()
		close(l.leaving)
		return nil
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		close(l.leaving)
		if !l.kept.awaitHandover(keptFor) {
			l.log.Warn("the agent ends, and connections of a proxy that has ended, or is about to, with it", "waited", keptFor)
		}
		close(ended)
		l.incoming.Close()
	})
	defer stop()
	for {
		raw, err := l.incoming.AcceptUnix()
		select {
		case <-ended:
			if err == nil {
				return raw.Close()
			}
			return nil
		default:
		}
		switch {
		case reason.IsNoDescriptors(err):
			l.log.Warn("no proxy can come now; trying again", "error", err)
			select {
			case <-ended:
			case <-time.After(time.Second):
			}
			continue
		case err != nil:
			return fmt.Errorf("waiting for proxies: %w", err)
		}
		l.serve(raw)
	}
}

// serve attends to a proxy in a goroutine of its own, unless all has ended.
func (l *Listeners) serve(raw *net.UnixConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		raw.Close()
		return
	}
	l.attended.Go(func() {
		if err := l.attend(handover.NewConn(raw)); err != nil {
			l.log.Warn("a proxy has gone", "error", err)
		}
	})
}

// Connect returns the proxy's end of a connection, for a proxy in this
// process: see [handover.NewLocalClient].
func (l *Listeners) Connect(context.Context) (*net.UnixConn, error) {
	mine, proxys, err := handover.Pair()
	if err != nil {
		return nil, err
	}
	l.serve(mine)
	return proxys, nil
}

// TellLastPush tells the proxies that a worker of a job has made its last push.
func (l *Listeners) TellLastPush(job string, node int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sendToAll(handover.Message{Kind: handover.LastPush, Job: job, Node: node}, nil)
}

// Close frees what a Listeners that was not run holds.
func (l *Listeners) Close() error {
	var err error
	if l.incoming != nil {
		err = l.incoming.Close()
	}
	return errors.Join(err, l.closeListeners(false))
}

// closeListeners closes this process's listeners. With keep their redirections stay,
// for the agent that follows; without, connects go direct again.
func (l *Listeners) closeListeners(keep bool) error {
	l.kept.close()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		close(l.over)
	}
	l.closed = true
	if l.without != nil {
		l.without.Stop()
	}
	var failed error
	for _, o := range l.mesh {
		if keep {
			failed = errors.Join(failed, o.close())
		}
	}
	if !keep {
		failed = errors.Join(failed, l.closeMeshes(nil))
	}
	for at, o := range l.open {
		if keep {
			failed = errors.Join(failed, o.close())
			delete(l.open, at)
			continue
		}
		failed = errors.Join(failed, l.close(at))
	}
	for conn := range l.proxies {
		conn.Close()
	}
	return failed
}
