// Package control takes orders from processes of this host without a certificate:
// over a unix socket, or over loopback, where the kernel reports the user at the
// other end.
//
// [Listen] opens a socket at which each connection knows its user; [Handler] lets
// chosen users alone through to an HTTP handler and logs what they change;
// [Credentials] gives the caller's user to a gRPC server's access policy. Root, the
// user that psidecar runs as and those that a flag names are trusted. The planner,
// the proxy, the agent and psidecar up use it.
package control

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Users are those that are trusted besides root and this process's own.
type Users []uint

// Trusted reports whether a user may change things; -1 is nobody.
func (u Users) Trusted(uid int) bool {
	return uid == 0 || uid >= 0 && (uid == os.Geteuid() || slices.Contains(u, uint(uid)))
}

// String lists the trusted users, for errors.
func (u Users) String() string {
	words := []string{"root"}
	if own := os.Geteuid(); own != 0 {
		words = append(words, fmt.Sprintf("user %d", own))
	}
	for _, uid := range u {
		words = append(words, fmt.Sprintf("user %d (--admin-uid)", uid))
	}
	return strings.Join(words, ", ")
}

// Listener is a unix socket.
type Listener struct {
	*net.UnixListener
	path string
	file os.FileInfo // the file at the path, if it is still this socket
}

// Conn is a connection to a [Listener].
type Conn struct {
	net.Conn
	UID int // of the peer, as the kernel recorded it at connect
}

// Listen opens a socket at the path, in place of one that is there: the newest
// process takes the orders. Everybody may connect: a user without rights gets an
// error that says so, not a bare refusal.
func Listen(path string) (*Listener, error) {
	if len(path) == 0 || path[0] == '@' {
		return nil, fmt.Errorf("unix socket %q: want a path; who may reach an abstract name cannot be limited", path)
	}
	// Made aside and moved, so that there is always one that works.
	aside := fmt.Sprintf("%s.%d", path, os.Getpid())
	if err := os.Remove(aside); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("unix socket %s: %w", path, err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: aside, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("unix socket %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	opened := &Listener{UnixListener: l, path: path}
	if err = os.Chmod(aside, 0o666); err == nil {
		if opened.file, err = os.Lstat(aside); err == nil {
			err = os.Rename(aside, path)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("unix socket %s: %w", path, err), l.Close(), os.Remove(aside))
	}
	return opened, nil
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		uid, err := peerOf(c)
		if err != nil {
			c.Close()
			continue
		}
		return &Conn{c, uid}, nil
	}
}

// Close removes the socket too, unless another is in its place.
func (l *Listener) Close() error {
	if at, err := os.Lstat(l.path); err == nil && os.SameFile(at, l.file) {
		err = os.Remove(l.path)
		return errors.Join(err, l.UnixListener.Close())
	}
	return l.UnixListener.Close()
}

func peerOf(c *net.UnixConn) (uid int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	var who *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) { who, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return -1, err
	}
	if failed != nil {
		return -1, failed
	}
	return int(who.Uid), nil
}

// Await opens a socket whose folder may be made later, by another process. It
// tries until done is closed, and returns nil then.
func Await(done <-chan struct{}, path string, failing func(error)) *Listener {
	var before string
	for {
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			var l *Listener
			if l, err = Listen(path); err == nil {
				return l
			}
		}
		if text := err.Error(); text != before && !errors.Is(err, syscall.ENOENT) {
			before = text
			failing(err)
		}
		select {
		case <-done:
			return nil
		case <-time.After(time.Second):
		}
	}
}
