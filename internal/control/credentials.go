package control

import (
	"context"
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// Credentials returns the credentials of a gRPC server that listens on TCP and on a unix
// socket. On TCP, tls decides. If tls is nil, callers over loopback are identified by their
// user, and others are accepted only if open says that no identity is required. failed is
// called with connections that are refused.
func Credentials(tls credentials.TransportCredentials, users Users, open bool, failed func(net.Addr, error)) credentials.TransportCredentials {
	c := &server{TransportCredentials: tls, tls: tls != nil, users: users, open: open, failed: failed}
	if !c.tls {
		c.TransportCredentials = insecure.NewCredentials()
	}
	return c
}

// server are the credentials of a server; Clone copies all of it, since nothing in it changes.
type server struct {
	credentials.TransportCredentials
	tls   bool
	users Users
	open  bool

	failed func(net.Addr, error)
}

// ServerHandshake implements credentials.TransportCredentials. It runs in a goroutine for each
// connection.
func (s *server) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := s.judge(conn)
	if err != nil {
		s.failed(conn.RemoteAddr(), err)
	}
	return secured, info, err
}

// judge identifies the peer of a connection.
func (s *server) judge(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if c, ok := conn.(*Conn); ok {
		return conn, s.local(c.UID, "over the unix socket"), nil
	}
	if s.tls || s.open {
		return s.TransportCredentials.ServerHandshake(conn)
	}
	c, ok := conn.(*net.TCPConn)
	if !ok || !c.RemoteAddr().(*net.TCPAddr).IP.IsLoopback() {
		return nil, nil, errors.New("without certificates the planner is for loopback alone; see --insecure")
	}
	uid, err := loopbackUser(c)
	info := s.local(uid, "over loopback")
	if err != nil {
		info.Why = fmt.Sprintf("the caller is unknown: %v", err)
	}
	return conn, info, nil
}

// local returns the identity of a user of this host.
func (s *server) local(uid int, how string) Local {
	l := Local{UID: uid, Trusted: s.users.Trusted(uid)}
	l.SecurityLevel = credentials.NoSecurity
	if !l.Trusted {
		l.Why = fmt.Sprintf("user %d has read access only %s: changes are for %s; see --admin-uid", uid, how, s.users)
	}
	return l
}

// ClientHandshake implements credentials.TransportCredentials. It always fails.
func (s *server) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these are a server's credentials")
}

// Clone implements credentials.TransportCredentials.
func (s *server) Clone() credentials.TransportCredentials {
	c := *s
	c.TransportCredentials = s.TransportCredentials.Clone()
	return &c
}
