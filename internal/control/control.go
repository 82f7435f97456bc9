// Package control takes orders from users of this host without certificates: over a unix
// socket, or over loopback, where the kernel reports the user at the other end. It also has the
// access policy of the planner (access.go).
//
// [Listen] opens a socket at which each connection knows its user. [Server] passes requests of
// trusted users to an HTTP handler and logs what they change. [Credentials] tells a gRPC
// server's [Policy] the caller's user. Root, the user that psidecar runs as, and those named by
// a flag are trusted. The planner, the proxy, the agent and psidecar up use it.
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

// Users are trusted besides root and this process's own user.
type Users []uint

// Trusted reports whether a user may change things; -1 is an unknown user, who may not.
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

// A Listener is a unix socket at a path.
type Listener struct {
	*net.UnixListener
	path string
	file os.FileInfo // the socket's file, to recognize whether it is still the one at the path
}

// A Conn is a connection to a [Listener].
type Conn struct {
	net.Conn
	UID int // of the peer when it connected, as the kernel recorded it
}

// Listen opens a socket at a path and replaces one that is there: the newest process takes the
// orders. Anyone may connect; a user without rights gets an error that says so, instead of a
// bare refusal by the kernel.
func Listen(path string) (*Listener, error) {
	if len(path) == 0 || path[0] == '@' {
		return nil, fmt.Errorf("unix socket %q: want a path; access to abstract names cannot be restricted", path)
	}
	// Created under another name and renamed, so that the path always leads to a working
	// socket.
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

// Accept implements net.Listener. The connections are [Conn]s.
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

// Close closes the socket and removes its file, unless another socket has replaced it.
func (l *Listener) Close() error {
	if at, err := os.Lstat(l.path); err == nil && os.SameFile(at, l.file) {
		err = os.Remove(l.path)
		return errors.Join(err, l.UnixListener.Close())
	}
	return l.UnixListener.Close()
}

// peerOf returns the user at the other end (SO_PEERCRED).
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

// Await opens a socket in a folder that another process may create later. It tries every second
// until done is closed, and then returns nil. failing is called with each new error.
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
