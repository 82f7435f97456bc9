package discover

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/psidecar/psidecar/test/require"
)

// roleVariable makes the test binary a process that has the test's listener.
const roleVariable = "DISCOVER_TEST_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) != "" {
		time.Sleep(time.Hour)
	}
	if root := os.Getenv(rootOf); root != "" {
		if err := liveIn(root); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// A node that listens is found where the kernel shows it, with its address and
// its connections: that needs the links of /proc, not its files alone.
func TestListeningNode(t *testing.T) {
	l := require.Value(net.Listen("tcp4", "127.0.0.1:0"))(t)
	defer l.Close()
	file := require.Value(l.(*net.TCPListener).File())(t)
	defer file.Close()
	at := netip.MustParseAddrPort(l.Addr().String())
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.ExtraFiles = []*os.File{file}
	cmd.Env = append(os.Environ(), roleVariable+"=node", "DMLC_ROLE=server", "DMLC_PS_ROOT_URI=127.0.0.1", "DMLC_PS_ROOT_PORT=9",
		"DMLC_NUM_SERVER=1", "DMLC_NUM_WORKER=1")
	require.NoError(t, cmd.Start())
	defer cmd.Wait()
	defer cmd.Process.Kill()
	s := require.Value(Take(OpenProc("/proc"), nil, func(pid int) bool { return pid != cmd.Process.Pid }))(t)
	if len(s.Processes) != 1 || len(s.Processes[0].Listens) != 1 || s.Processes[0].Listens[0] != at {
		t.Errorf("found %+v, want a server that listens at %s", s.Processes, at)
	}
}
