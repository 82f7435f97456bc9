package dial

import (
	"log/slog"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/test/require"
)

func markOf(t *testing.T, conn net.Conn) (mark int) {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err == nil {
		e := raw.Control(func(fd uintptr) { mark, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK) })
		if e != nil {
			err = e
		}
	}
	require.NoError(t, err)
	return mark
}

func TestDialer(t *testing.T) {
	require.Root(t)
	l := require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	for _, want := range []int{0, 0x1234} {
		conn := require.Value(MarkingDialer(want, slog.Default()).Dial("tcp", l.Addr().String()))(t)
		if got := markOf(t, conn); got != want {
			t.Errorf("mark %#x, want %#x", got, want)
		}
		conn.Close()
	}
}
