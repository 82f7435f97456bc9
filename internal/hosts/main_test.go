package hosts_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/require"
)

// roleVariable makes the test program play a part instead of testing: that of
// a process on a host, or of an owner of hosts that will be killed.
const roleVariable = "HOSTS_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "":
		goleak.VerifyTestMain(m)
	case "whereami":
		whereami()
	case "owner":
		ownHosts()
	case "poor":
		failToOwnHosts()
	default:
		fmt.Fprintf(os.Stderr, "unknown %s\n", roleVariable)
		os.Exit(2)
	}
}

// whereami prints the network namespace and the cgroup that it runs in.
func whereami() {
	ns, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		panic(err)
	}
	cgroups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		panic(err)
	}
	for line := range strings.Lines(string(cgroups)) {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			fmt.Printf("%s %s", ns, path)
		}
	}
}

// ownHosts makes hosts with a process on them, prints their names and waits
// to be killed.
func ownHosts() {
	n, err := hosts.New(hosts.Config{Hosts: 2})
	if err != nil {
		panic(err)
	}
	p, err := n.Host(1).StartIn("job", exec.Command("sleep", "1000"))
	if err != nil {
		panic(err)
	}
	fmt.Println(n.Host(1).Namespace(), n.Cgroup(), p.Pid())
	time.Sleep(time.Hour)
}

// failToOwnHosts runs out of file descriptors while it makes hosts.
func failToOwnHosts() {
	limit := unix.Rlimit{Cur: 100, Max: 100}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		panic(err)
	}
	_, err := hosts.New(hosts.Config{Hosts: 64})
	fmt.Println(err)
	// It stays alive, so that nobody else reaps what it left.
	os.Stdout.Close()
	time.Sleep(time.Hour)
}

// role returns the command that plays the part.
func role(t *testing.T, name string) *exec.Cmd {
	t.Helper()
	self := require.Value(os.Executable())(t)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), roleVariable+"="+name)
	cmd.Stderr = os.Stderr
	return cmd
}
