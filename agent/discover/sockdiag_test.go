package discover

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/test/require"
)

// cgroupOfTest returns the number of this process's cgroup v2.
func cgroupOfTest(t *testing.T) uint64 {
	t.Helper()
	text := require.Value(os.ReadFile("/proc/self/cgroup"))(t)
	for line := range strings.Lines(string(text)) {
		path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		info := require.Value(os.Stat(filepath.Join(require.CgroupV2(t), path)))(t)
		return info.Sys().(*syscall.Stat_t).Ino
	}
	require.Missing(t, "this process is in no cgroup v2")
	return 0
}

func TestListening(t *testing.T) {
	want := cgroupOfTest(t)
	for _, at := range []string{"127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"} {
		network := "tcp4"
		if at[0] == '[' {
			network = "tcp6"
		}
		var plain net.ListenConfig
		plain.SetMultipathTCP(false) // its listeners have a second socket inside
		l, err := plain.Listen(t.Context(), network, at)
		if err != nil {
			t.Logf("%s: %v", at, err) // no IPv6
			continue
		}
		address := l.Addr().(*net.TCPAddr).AddrPort()
		all, err := ListeningSockets(address.Port())
		if errors.Is(err, ErrNoSocketCgroups) {
			require.Missing(t, "%v", err)
		}
		require.NoError(t, err)
		cookie := require.Value(cookieOf(l.(*net.TCPListener)))(t)
		if len(all) == 1 && all[0].Cookie != cookie {
			t.Errorf("%s: cookie %#x, want %#x", address, all[0].Cookie, cookie)
		}
		if len(all) != 1 || all[0].Address != netip.AddrPortFrom(address.Addr().Unmap(), address.Port()) || all[0].Cgroup != want {
			t.Errorf("%s: %+v, want cgroup %d", address, all, want)
		}
		l.Close()
		if all, err := ListeningSockets(address.Port()); err != nil || len(all) != 0 {
			t.Errorf("%s, closed: %+v, %v", address, all, err)
		}
	}
}

// cookieOf asks the kernel by another way.
func cookieOf(l *net.TCPListener) (cookie uint64, err error) {
	raw, err := l.SyscallConn()
	if err != nil {
		return 0, err
	}
	if e := raw.Control(func(fd uintptr) { cookie, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE) }); e != nil {
		return 0, e
	}
	return cookie, err
}

func FuzzParse(f *testing.F) {
	f.Add(make([]byte, messageSize))
	f.Add(make([]byte, messageSize+12))
	f.Fuzz(func(_ *testing.T, b []byte) { parse(b) })
}
