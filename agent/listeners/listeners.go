// Package listeners is the privileged half of interception. It redirects the connects of jobs
// (bpf/redirect), opens the listeners to which they are redirected inside the jobs' network
// namespaces, and hands those to a proxy that has no privileges (internal/handover). The agent
// uses it.
//
// # Inputs and outputs
//
// Its input is the full list of processes to serve, each time again ([Listeners.Reconcile]),
// and proxies that connect to a unix socket ([Listeners.Run]). Its output are listeners: file
// descriptors, sent over that socket. A proxy in the same process uses [Listeners.Connect]
// instead of the socket.
//
// Nothing is redirected before the first proxy comes. When the last one leaves, its listeners
// are kept for [Options.Grace], with connects waiting in their backlogs for the next proxy;
// then they are closed and connects go direct again, except where a group fails closed.
//
// # Files
//
// reconcile.go opens and closes what the list of processes asks for, netns.go has the sockets
// and namespaces, proxies.go the conversation with a proxy, turn.go the orderly replacement of
// one proxy by the next, hang.go what happens to a proxy that is stuck, kept.go the connections
// that outlive a proxy, spare.go which connections need no proxy, owner.go the proxies' queries for who listens at an address.
//
// # Concurrency
//
// Each proxy has a goroutine that reads its messages, one that pings it, and up to maxQuestions
// that answer its queries. All state is guarded by Listeners.mu, except for carried, kept,
// strangers and unneeded, which have locks of their own; those are leaves and are taken after Listeners.mu
// where both are held. Messages to proxies are sent under Listeners.mu, so all proxies see
// changes in one order.
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
	"github.com/psidecar/psidecar/internal/handover"
	"github.com/psidecar/psidecar/internal/reason"
)

// Options of a Listeners. The zero values are described with each field.
type Options struct {
	// Redirect has the BPF programs and maps. The Listeners does not close it.
	Redirect *redirect.Redirect
	// Socket is the path at which proxies connect; empty means [handover.DefaultSocket]. Its
	// folder is made if it does not exist.
	Socket string
	// NoSocket leaves the socket out: the proxy is in this process and uses
	// [Listeners.Connect].
	NoSocket bool
	// UID is the user that proxies run as; it owns the socket. Root and this process's own user
	// are served too.
	UID int
	// MeshPort is the port that is opened for the links of other hosts' proxies in each job's
	// network namespace, other than this process's. Jobs with addresses of their own, such as
	// pods, are reached at these. 0 opens none.
	MeshPort uint16
	// OwnCgroup is the cgroup v2 folder of this process; empty means the one of
	// /proc/self/cgroup.
	OwnCgroup string
	// Grace is how long listeners are kept without a proxy; 0 means 3 s.
	Grace time.Duration
	// Patience is how long a proxy may leave pings unanswered before it counts as gone; 0 means
	// 5 s.
	Patience time.Duration
	// HangAfter is how long a proxy of another process may leave pings unanswered before it is
	// killed; 0 means that it never is.
	HangAfter time.Duration
}

// Listeners serves the proxies of a host. It is safe for concurrent use.
//
// Invariants, under mu: every place in open has its listener in the kernel's map while hasRoom
// holds for its group, and none otherwise; the group of every place is attached; every proxy in
// proxies has been sent all listeners of open (and those of mesh, if it takes links), after the
// titles that they need.
type Listeners struct {
	opts     Options
	mark     uint32 // SO_MARK of the listeners, by which the BPF programs know them
	home     uint64 // inode of this process's network namespace
	log      *slog.Logger
	tells    bool              // the kernel reports the cgroups of listening sockets
	leaving  chan struct{}     // closed when Run's context ends; proxies are still served
	over     chan struct{}     // closed when no proxy is served any more
	incoming *net.UnixListener // nil with NoSocket
	attended sync.WaitGroup    // the goroutines of proxies

	mu         sync.Mutex                  // guards the fields below, except the last six
	wanted     []Process                   // the argument of the last Reconcile
	news       chan struct{}               // closed, and replaced, by each Reconcile
	reconciled bool                        // Reconcile has been called; until then pins of an earlier agent are left alone
	groups     map[string]redirect.GroupID // attached cgroups, by path
	open       map[place]*opened           // listeners for jobs' connects
	titles     map[titled]handover.Title   // names and wishes that the proxies know; at most maxTitles
	mesh       map[uint64]*opened          // listeners for links, by the inode of the network namespace
	proxies    map[*handover.Conn]bool     // admitted proxies; true: it takes more connections
	crowded    map[*handover.Conn]uint64   // the group of which those take no more; no entry is 0
	linking    map[*handover.Conn]bool     // proxies that take mesh listeners
	yields     map[*handover.Conn]bool     // those that end when they are asked to
	spares     map[*handover.Conn]bool     // proxies; true: connections may do without it
	spared     map[redirect.GroupID]bool   // the policy of groups, as last set
	bypassed   map[redirect.GroupID]bool   // groups that were spared at some time
	next       *successor                  // the proxy that waits for its turn; nil: none
	// closing has the groups that each proxy wants to fail closed.
	closing map[*handover.Conn]map[redirect.GroupID]bool
	without *time.Timer // runs for Grace after the last proxy has left; else nil
	nextID  uint64      // id of the listener handed out last
	closed  bool
	ending  limit // bounds how often proxies are killed

	carried   carried
	parts     parts
	kept      kept
	hung      hung
	strangers strangers
	unneeded  unneeded
}

// New opens the socket for proxies and attaches the program that tells proxies the original
// destinations. Nothing is redirected yet. Close, or the end of Run, releases what it holds.
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
	// The socket of an accepted connection belongs to the cgroup of the process that opened the
	// listener, which is this one, not the proxy's.
	if err := o.Redirect.AttachProxy(o.OwnCgroup); err != nil {
		return nil, fmt.Errorf("attaching the original destination program: %w", err)
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
		slog.Warn("cannot report the jobs' ports to proxies; proxies on other hosts can reach all ports", "error", untold)
	}
	return &Listeners{
		kept: kept{most: affordableKept()},
		opts: o, tells: untold == nil, mark: mark, home: home, news: make(chan struct{}), leaving: make(chan struct{}), over: make(chan struct{}), yields: map[*handover.Conn]bool{}, spares: map[*handover.Conn]bool{}, spared: map[redirect.GroupID]bool{}, bypassed: map[redirect.GroupID]bool{}, mesh: map[uint64]*opened{}, crowded: map[*handover.Conn]uint64{}, linking: map[*handover.Conn]bool{}, closing: map[*handover.Conn]map[redirect.GroupID]bool{}, log: slog.Default(), incoming: incoming,
		groups: map[string]redirect.GroupID{}, open: map[place]*opened{}, titles: map[titled]handover.Title{}, proxies: map[*handover.Conn]bool{},
		nextID: uint64(time.Now().UnixNano()), // differs from the ids of an earlier agent, whose listeners a proxy may still hold
	}, nil
}

// listenUnix opens the socket for proxies and gives it to one user. If another agent still
// answers at it, it fails; a socket left by an agent that was killed is replaced.
//
// The check and the removal are not atomic: of two agents that start at the same moment, the
// later one wins the path.
func listenUnix(socket string, uid int) (*net.UnixListener, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return nil, err
	}
	if err := giveState(filepath.Join(filepath.Dir(socket), "state"), uid); err != nil {
		return nil, err
	}
	if c, err := net.Dial("unixpacket", socket); err == nil {
		c.Close()
		return nil, fmt.Errorf("%s: in use by another agent", socket)
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err // of an agent that was killed
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	// A user other than uid can connect only between these two calls and is turned away by
	// attend, which checks the peer's credentials.
	if err := errors.Join(os.Chmod(socket, 0o600), os.Chown(socket, uid, -1)); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// giveState makes the folder for a proxy's state files beside the socket, where an unprivileged
// user cannot make one, and gives it to uid. It does nothing when proxies run as root or as
// this user.
func giveState(dir string, uid int) error {
	if uid == 0 || uid == os.Geteuid() {
		return nil
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	// Lchown: a symbolic link in its place must not give away what it points to.
	return os.Lchown(dir, uid, -1)
}

// ownCgroup returns the folder of this process's cgroup v2, below the first cgroup2 mount.
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
	return "", errors.New("this process is not in a cgroup v2 (see psidecar doctor)")
}

// At reports whether one of the listeners for jobs' connects has this address, in any network
// namespace. The agent uses it to tell redirected connections from others in what it captures.
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

// Run serves proxies until ctx ends and then closes this process's listeners. It returns when
// all proxies have been let go. With keep, redirections stay and proxies go on with their
// copies of the listeners, so that the next agent can take over. Without it, connects go
// direct, or fail if their group fails closed. The pinned programs stay in both cases;
// [redirect.Unload] removes them.
func (l *Listeners) Run(ctx context.Context, keep bool) error {
	err := l.accept(ctx)
	err = errors.Join(err, l.closeListeners(keep))
	l.attended.Wait()
	return err
}

// accept serves proxies until ctx ends. As long as connections are kept for a proxy to come it
// goes on for up to keptFor after that, because a new proxy must be able to fetch them.
func (l *Listeners) accept(ctx context.Context) error {
	if l.incoming == nil {
		<-ctx.Done()
		close(l.leaving)
		return nil
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		close(l.leaving)
		// Proxies that count on this agent are still served here, and so is a new one that
		// comes for what they left.
		if !l.kept.awaitHandover(keptFor) {
			l.log.Warn("shutting down; connections held for the next proxy are closed", "waited", keptFor)
		}
		close(ended)
		l.incoming.Close()
	})
	defer stop()
	for {
		raw, err := l.incoming.AcceptUnix()
		select {
		// An error after that is the closed socket's, and no failure.
		case <-ended:
			if err == nil {
				return raw.Close()
			}
			return nil
		default:
		}
		switch {
		// Out of descriptors: the listener is still good. Without the pause this would spin.
		case reason.IsNoDescriptors(err):
			l.log.Warn("cannot accept a proxy; retrying", "error", err)
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

// serve talks with a proxy in a goroutine of its own. Once the listeners are closed it hangs up
// instead; the lock makes sure that no goroutine starts after Run waits for them.
func (l *Listeners) serve(raw *net.UnixConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		raw.Close()
		return
	}
	l.attended.Go(func() {
		if err := l.attend(handover.NewConn(raw)); err != nil {
			l.log.Warn("proxy disconnected", "error", err)
		}
	})
}

// Connect returns the proxy's end of a new connection, for a proxy in this process; see
// [handover.NewLocalClient]. The caller closes it. It does not block.
func (l *Listeners) Connect(context.Context) (*net.UnixConn, error) {
	mine, proxys, err := handover.Pair()
	if err != nil {
		return nil, err
	}
	l.serve(mine)
	return proxys, nil
}

// TellLastPush tells the proxies that a worker has announced its last push to the scheduler, on
// a connection that bypasses them. What a proxy holds back of that worker's gradients would
// otherwise wait for a push that never comes.
func (l *Listeners) TellLastPush(job string, node int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sendToAll(handover.Message{Kind: handover.LastPush, Job: job, Node: node}, nil)
}

// Close releases what a Listeners holds that was never run.
func (l *Listeners) Close() error {
	var err error
	if l.incoming != nil {
		err = l.incoming.Close()
	}
	return errors.Join(err, l.closeListeners(false))
}

// closeListeners closes this process's copies of the listeners and hangs up on all proxies.
// With keep, the redirections stay in the kernel for the next agent; without it, connects go
// direct again. It may be called twice.
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
	// Closing this process's copy does not end what a proxy accepts with its own.
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
	// Their readers see the end and dismiss them, which finds closed set and touches nothing.
	for conn := range l.proxies {
		conn.Close()
	}
	return failed
}
