// Package handover is how a proxy without privileges gets its listeners: the agent, which may
// enter network namespaces, opens them there and hands them over as file descriptors on a
// Unix socket. The agent keeps a copy of each, so that connects wait in the kernel's queue
// while a proxy is replaced; the proxy keeps its own, so that it works on while an agent is
// replaced.
//
// Most listeners take what the job connects. Those with Mesh are for the links of other
// proxies, in network namespaces other than the agent's, and go only to proxies whose hello
// has Mesh set.
//
// The agent also holds connections for the next proxy (keep.go, leave.go), sets what happens
// to connects while there is no proxy ([Client.SetFailClosed]), tells whose ports are whose
// ([Client.Owner]), learns which keys are parts of others (parts.go), and decides when a proxy
// that replaces another may begin (turn.go).
//
// # Protocol
//
// The socket carries packets (SOCK_SEQPACKET), each a [Message] in JSON, with descriptors
// beside listeners and connections. Proxy and agent begin with a Hello that has the version
// and what each supports; everything else goes in any order. Questions have a sequence
// number, which their Result repeats. Kinds that a side does not know are ignored, and their
// descriptors closed.
//
// [Client] is the proxy's side; agent/listeners has the other. Where both are in one process
// the socket is one end of a [Pair]. The package imports nothing of this module that has
// state, so that both may use it.
package handover

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/internal/policy"
)

// Version is that of the protocol. A side that receives another one answers with its own and
// ends the connection.
const Version = 1

// DefaultSocket is the default path at which the agent waits for proxies.
const DefaultSocket = "/run/psidecar/listeners.sock"

// Kinds of messages.
const (
	Hello      = "hello"       // both: Version, Keeps; from the proxy: Mesh, Waits, Yields, On; from the agent: Owners, Holds, Stays, Turns, On
	Listening  = "listener"    // from the agent, with a descriptor: ID, Job, Cgroup, Netns, Address, Mesh
	Withdrawn  = "withdrawn"   // from the agent: ID is not used any more
	Complete   = "complete"    // from the agent: all present listeners have been named
	FailClosed = "fail-closed" // from the proxy: Cgroup, On; answered by a Result
	Owner      = "owner"       // from the proxy: Netns, Address; answered by a Result with Found and Cgroup
	PartKeys   = "part-keys"   // from the proxy: Job, Parts; keys that are parts of others, besides those it has named before
	Stays      = "stays"       // from the proxy, which is about to end; answered by a Result, with Error where the agent is about to end too
	Result     = "result"      // from the agent: Sequence, Error where it failed
	Refused    = "refused"     // from the agent, which then ends the connection: Error
	Ping       = "ping"        // from the agent, every second; answered by a Pong
	Pong       = "pong"        // from the proxy, which is not stuck; Carried, Crowded
	Full       = "full"        // from the proxy: On, it takes no more connections for now
	Spares     = "spares"      // from the proxy: On, connections need not come through it unless their link is slow
	Unneeded   = "unneeded"    // from the proxy: Netns, Address; the connection from there gains nothing by it
	Called     = "called"      // from the agent: Cgroup, Netns, Job, Name, Wishes; without the last two nothing is called or wished any more
	LastPush   = "last-push"   // from the agent: Job, Node; a worker has told its scheduler, bypassing the proxy, that it pushes no more
	Yield      = "yield"       // from the agent: another proxy waits for its turn; end in order
	Turn       = "turn"        // from the agent, to a proxy whose Hello has Waits: no other proxy is there any more
	// Keep, from the proxy, with the descriptors of a connection and of its page (package
	// keep): ID; to be held for the next proxy. Drop: not to be held any longer. Kept, from
	// the agent, with both descriptors: ID; a proxy that has ended left it. AllKept: all of
	// those have been named, and there is no other proxy that could leave more.
	Keep    = "keep"
	Drop    = "drop"
	Kept    = "kept"
	AllKept = "all-kept"
)

// Message is the content of one packet. Which fields are set depends on Kind.
type Message struct {
	Kind    string `json:"kind"`
	Version int    `json:"version,omitempty"`

	ID  uint64 `json:"id,omitempty"`  // of a listener
	Job string `json:"job,omitempty"` // its scheduler's address
	// Name is what the Job is called in that Cgroup and Netns. Wishes are what its owner asks
	// for there, by the keys of package policy.
	Name    string         `json:"name,omitempty"`
	Wishes  *policy.Policy `json:"wishes,omitempty"`
	Cgroup  uint64         `json:"cgroup,omitempty"` // kernel's number of the cgroup whose connects come
	Netns   uint64         `json:"netns,omitempty"`  // inode of the network namespace
	Address netip.AddrPort `json:"address,omitzero"` // in that namespace
	Mesh    bool           `json:"mesh,omitempty"`   // of a listener: for links; of a proxy's Hello: it takes such
	On      bool           `json:"on,omitempty"`     // of FailClosed, and of a listener's cgroup: what cannot be redirected fails; of Full; of Spares, and a proxy's Hello, which says the same; of an agent's Hello: it knows Spares and Unneeded
	Owners  bool           `json:"owners,omitempty"` // of an agent's Hello: it answers Owner
	Found   bool           `json:"found,omitempty"`  // of an Owner's Result: a process listens there
	Node    int32          `json:"node,omitempty"`   // id of a node of the Job
	Keeps   int            `json:"keeps,omitempty"`  // of an agent's Hello: how many connections it keeps; of a proxy's: not 0 where it takes Kept
	Holds   int64          `json:"holds,omitempty"`  // of an agent's Hello: milliseconds for which it holds them once their proxy has ended; 0: it is older

	Stays   bool     `json:"stays,omitempty"`   // of an agent's Hello: it answers Stays
	Waits   bool     `json:"waits,omitempty"`   // of a proxy's Hello: it is none yet, and begins when it is its Turn
	Yields  bool     `json:"yields,omitempty"`  // of a proxy's Hello: it knows Yield
	Turns   bool     `json:"turns,omitempty"`   // of an agent's Hello: it knows Turn
	Carried *Carried `json:"carried,omitempty"` // of a Pong; nil: the proxy does not say
	Crowded uint64   `json:"crowded,omitempty"` // of a Pong: the cgroup whose new connections are to go direct for now; 0: none

	PartKeys bool        `json:"part_keys,omitempty"` // of an agent's Hello: it knows PartKeys
	Parts    []PartRange `json:"parts,omitempty"`     // at most mostParts

	Sequence uint64 `json:"sequence,omitempty"` // of a question and its Result
	Error    string `json:"error,omitempty"`
}

// Carried is what a proxy has carried since it began: bytes that it took from jobs for links
// with a codec, and bytes that it sent in their place.
type Carried struct {
	Job uint64 `json:"job"`
	Far uint64 `json:"far"`
}

// PartRange says that the keys from the first to the second number are parts of the keys from the third on.
type PartRange [3]uint64

const (
	maxMessage  = 16 << 10
	mostParts   = 200             // in a message of maxMessage
	sendTimeout = 5 * time.Second // a peer that does not read for so long is given up
)

// Conn carries messages. Send may be called by several goroutines, Receive by one at a time.
type Conn struct{ unix *net.UnixConn }

// NewConn returns a Conn over a connection of network "unixpacket", which becomes the Conn's.
func NewConn(c *net.UnixConn) *Conn { return &Conn{c} }

// Pair returns the two ends of a connection within this process, for an agent and a proxy
// that share it. The caller closes both.
func Pair() (a, b *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("connecting agent and proxy: %w", err)
	}
	var ends [2]*net.UnixConn
	var failed error
	for i, fd := range fds {
		// FileConn duplicates the descriptor, so the file is closed in any case.
		file := os.NewFile(uintptr(fd), "handover")
		c, err := net.FileConn(file)
		failed = errors.Join(failed, err, file.Close())
		if err == nil {
			ends[i] = c.(*net.UnixConn)
		}
	}
	if failed != nil {
		for _, c := range ends {
			if c != nil {
				failed = errors.Join(failed, c.Close())
			}
		}
		return nil, nil, fmt.Errorf("connecting agent and proxy: %w", failed)
	}
	return ends[0], ends[1], nil
}

// Send writes a message, with a descriptor where file is not nil, which stays the caller's.
// It blocks for up to sendTimeout.
func (c *Conn) Send(m Message, file *os.File) error {
	if file == nil {
		return c.send(m)
	}
	return c.send(m, file)
}

// send writes a message with the descriptors of up to two files or connections. Control keeps
// them open until the kernel has duplicated them, even if another goroutine closes them
// meanwhile.
func (c *Conn) send(m Message, files ...syscall.Conn) error {
	if len(files) == 0 {
		return c.SendRights(m)
	}
	raw, err := files[0].SyscallConn()
	if err != nil {
		return fmt.Errorf("handing over %s: %w", m.Address, err)
	}
	var sent error
	failed := raw.Control(func(fd uintptr) {
		if len(files) == 1 {
			sent = c.SendRights(m, int(fd))
			return
		}
		second, err := files[1].SyscallConn()
		if err == nil {
			err = second.Control(func(other uintptr) { sent = c.SendRights(m, int(fd), int(other)) })
		}
		sent = errors.Join(sent, err)
	})
	return errors.Join(sent, failed)
}

// SendRights writes a message with descriptors, which stay the caller's.
func (c *Conn) SendRights(m Message, fds ...int) error {
	text, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encoding a %s message: %w", m.Kind, err)
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	if err := c.unix.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return fmt.Errorf("sending a %s message: %w", m.Kind, err)
	}
	if _, _, err := c.unix.WriteMsgUnix(text, rights, nil); err != nil {
		return fmt.Errorf("sending a %s message: %w", m.Kind, err)
	}
	return nil
}

// Receive reads a message and the descriptor that came with it, which the caller closes; it
// is nil for all kinds but Listening. Where several descriptors come it closes them. The
// error is io.EOF once the other side has closed the connection.
func (c *Conn) Receive() (m Message, file *os.File, err error) {
	m, files, err := c.ReceiveAll()
	if len(files) == 1 {
		return m, files[0], err
	}
	for _, f := range files {
		f.Close()
	}
	return m, nil, err
}

// descriptorsOf returns the number of descriptors that come with a message.
func descriptorsOf(kind string) int {
	switch kind {
	case Listening:
		return 1
	case Keep, Kept:
		return 2
	}
	return 0
}

// ReceiveAll is Receive with all descriptors of the message, which the caller closes: for
// Keep and Kept the connection's and its page's. Descriptors of a message that is refused are
// closed here; otherwise they would leak, since the kernel has installed them.
func (c *Conn) ReceiveAll() (m Message, all []*os.File, err error) {
	text := make([]byte, maxMessage)
	rights := make([]byte, unix.CmsgSpace(4*4))
	n, rightsLen, flags, _, err := c.unix.ReadMsgUnix(text, rights)
	if err != nil {
		return m, nil, fmt.Errorf("receiving a message: %w", err)
	}
	// Descriptors are installed in this process already, whatever is wrong with the message.
	files, err := descriptors(rights[:rightsLen])
	defer func() {
		if all == nil {
			for _, f := range files {
				f.Close()
			}
		}
	}()
	switch {
	case err != nil:
		return m, nil, err
	case n == 0:
		return m, nil, io.EOF
	// A packet that was cut cannot be decoded, and the rest of it is gone.
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		return m, nil, fmt.Errorf("a message of more than %d bytes, or with too many descriptors", maxMessage)
	}
	if err := json.Unmarshal(text[:n], &m); err != nil {
		return m, nil, fmt.Errorf("decoding a message: %w", err)
	}
	if want := descriptorsOf(m.Kind); len(files) != want {
		return m, nil, fmt.Errorf("a %s message with %d descriptors, want %d", m.Kind, len(files), want)
	}
	return m, files, nil
}

// descriptors returns the files in a control message.
func descriptors(rights []byte) (files []*os.File, err error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, fmt.Errorf("reading descriptors: %w", err)
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue // something else than descriptors
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "listener"))
		}
	}
	return files, nil
}

// SetReadDeadline bounds the next Receive, which then fails with [os.ErrDeadlineExceeded].
// The zero Time removes the bound.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.unix.SetReadDeadline(t) }

// Close closes the connection.
func (c *Conn) Close() error { return c.unix.Close() }

// giveUp has Receive fail after a message could not be sent. If the other side has gone
// Receive fails by itself, once everything that was sent before has been read: connections
// may be among it.
func (c *Conn) giveUp(why error) {
	if !hasGone(why) {
		c.Close()
	}
}

// hasGone reports whether sending failed because the other side has closed the connection.
func hasGone(err error) bool { return errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) }

// Peer returns the credentials of the process at the other end, as the kernel knows them.
func (c *Conn) Peer() (*unix.Ucred, error) {
	raw, err := c.unix.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("reading the peer credentials of the socket: %w", err)
	}
	var who *unix.Ucred
	failed := raw.Control(func(fd uintptr) {
		who, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, failed); err != nil {
		return nil, fmt.Errorf("reading the peer credentials of the socket: %w", err)
	}
	return who, nil
}

// trust returns nil if the socket is held by root or the proxy's own user: whoever hands over
// listeners decides whose connections this proxy carries.
func trust(conn *Conn) error {
	who, err := conn.Peer()
	if err != nil {
		return err
	}
	if who.Uid != 0 && int(who.Uid) != os.Geteuid() {
		return fmt.Errorf("the socket is held by user %d, process %d: listeners are taken from root or user %d", who.Uid, who.Pid, os.Geteuid())
	}
	return nil
}

// Option returns an integer option of the socket.
func (c *Conn) Option(level, option int) (value int, err error) {
	raw, err := c.unix.SyscallConn()
	if err != nil {
		return 0, err
	}
	failed := raw.Control(func(fd uintptr) { value, err = unix.GetsockoptInt(int(fd), level, option) })
	return value, errors.Join(err, failed)
}

// Listener is a listener that was handed over. Close closes the proxy's copy only.
type Listener struct {
	*net.TCPListener
	ID     uint64
	Job    string // its scheduler's address
	Cgroup uint64 // the kernel's number
	Netns  uint64 // inode of the network namespace in which it listens
	Mesh   bool   // for links of other proxies, not of a job
	Closed bool   // connects of the cgroup fail without a proxy: one has asked for that
}

// newListener makes a listener of a descriptor, which stays the caller's, and verifies that
// it is what the message claims.
func newListener(m Message, file *os.File) (*Listener, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	var listening int
	failed := raw.Control(func(fd uintptr) {
		listening, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	})
	if err := errors.Join(err, failed); err != nil {
		return nil, fmt.Errorf("a descriptor that is no socket: %w", err)
	}
	if listening != 1 {
		return nil, errors.New("a socket that does not listen")
	}
	// It duplicates the descriptor, and makes it non-blocking.
	l, err := net.FileListener(file)
	if err != nil {
		return nil, fmt.Errorf("using a listener: %w", err)
	}
	tcp, ok := l.(*net.TCPListener)
	if !ok || tcp.Addr().(*net.TCPAddr).AddrPort() != m.Address {
		return nil, errors.Join(fmt.Errorf("a listener at %s %s, announced for TCP at %s", l.Addr().Network(), l.Addr(), m.Address), l.Close())
	}
	return &Listener{tcp, m.ID, m.Job, m.Cgroup, m.Netns, m.Mesh, m.On}, nil
}
