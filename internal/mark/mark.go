// Package mark marks the sockets of psidecar's own connections, by which
// interception leaves them alone. An agent or a proxy may run in a cgroup whose
// connects are intercepted.
package mark

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
)

// Dialer returns a dialer whose sockets have an SO_MARK; 0: none. Without the
// right to set it (CAP_NET_ADMIN) it says so once and goes on.
func Dialer(mark int, log *slog.Logger) *net.Dialer {
	if mark == 0 {
		return &net.Dialer{}
	}
	var once sync.Once
	return &net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) {
			if err := unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, mark); err != nil {
				once.Do(func() {
					log.Warn("psidecar's own sockets are not marked; it must not run in a cgroup that is intercepted", "mark", mark, "error", err)
				})
			}
		})
	}}
}

// GRPC returns how a gRPC client's connections get an SO_MARK, see [Dialer].
func GRPC(mark int, log *slog.Logger) []grpc.DialOption {
	if mark == 0 {
		return nil
	}
	d := Dialer(mark, log)
	return []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		return d.DialContext(ctx, "tcp", address)
	})}
}
