package dial

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
)

// MarkingDialer returns a dialer whose sockets get an SO_MARK; 0 means none. Without the right
// to set it (CAP_NET_ADMIN) it logs that once and connects unmarked.
func MarkingDialer(mark int, log *slog.Logger) *net.Dialer {
	if mark == 0 {
		return &net.Dialer{}
	}
	var once sync.Once
	return &net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) {
			if err := unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, mark); err != nil {
				once.Do(func() {
					log.Warn("cannot mark psidecar's own sockets; do not run psidecar in an intercepted cgroup", "mark", mark, "error", err)
				})
			}
		})
	}}
}

// MarkGRPC returns dial options that mark the connections of a gRPC client; see
// [MarkingDialer].
func MarkGRPC(mark int, log *slog.Logger) []grpc.DialOption {
	if mark == 0 {
		return nil
	}
	d := MarkingDialer(mark, log)
	return []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		return d.DialContext(ctx, "tcp", address)
	})}
}
