package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/psidecar/psidecar/test/require"
)

// stranger is a user whom nobody trusts.
const stranger = 65534

// asks is the variable by which this test's program, run again as another user,
// knows where to ask: unix:PATH by HTTP, or host:port, where it says a word.
const asks = "PSIDECAR_TEST_ASKS"

func TestMain(m *testing.M) {
	if where := os.Getenv(asks); where != "" {
		if err := askAt(where); err != nil {
			os.Stdout.WriteString(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func askAt(where string) error {
	path, ok := strings.CutPrefix(where, "unix:")
	if !ok {
		c, err := net.Dial("tcp", where)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = io.Copy(os.Stdout, c)
		return err
	}
	r, err := http.NewRequest(http.MethodPut, "http://control/x", strings.NewReader("[]"))
	if err != nil {
		return err
	}
	answer, err := Client(path).Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = errors.New(answer.Status + ": " + string(text))
	}
	return err
}

// needRoot skips a test that is somebody else for a while.
func needRoot(t *testing.T) {
	t.Helper()
	require.Root(t)
}

// asStranger runs this test's program as another user and returns what it says.
func asStranger(t *testing.T, where string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program(t))
	cmd.Env = append(os.Environ(), asks+"="+where)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger}}
	out, err := cmd.Output()
	return string(out), err
}

// program is a copy of this test's program that every user may run.
func program(t *testing.T) string {
	t.Helper()
	own := require.Value(os.ReadFile("/proc/self/exe"))(t)
	path := filepath.Join(folder(t), "program")
	require.NoError(t, os.WriteFile(path, own, 0o755))
	return path
}

// folder is one that all may enter, with a name short enough for sockets.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "psc")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// logged has the log of the test.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func listenLog(t *testing.T) *logged {
	t.Helper()
	l, before := &logged{}, slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(l, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	return l
}

// Root and the process's own user change things, which is logged with the user;
// another user gets an error that names the trusted ones, is counted, and changes
// nothing.
func TestOnlyTrustedUsersChangeThings(t *testing.T) {
	needRoot(t)
	log := listenLog(t)
	path := filepath.Join(folder(t), "s")
	l := require.Value(Listen(path))(t)
	changes := 0
	s := NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { changes++ }), nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket is left: %v", err)
		}
	}()
	if err := askAt("unix:" + path); err != nil || changes != 1 || s.changes.Load() != 1 {
		t.Errorf("this user: %v, %d changes", err, changes)
	}
	if text := log.String(); !strings.Contains(text, "msg=change") || !strings.Contains(text, fmt.Sprintf("user %d at", os.Geteuid())) {
		t.Errorf("the log has no change: %s", text)
	}
	out, err := asStranger(t, "unix:"+path)
	if err == nil || !strings.Contains(out, "user 65534 is not authorized: this socket is for root") {
		t.Errorf("another user: %v, %q", err, out)
	}
	if changes != 1 || s.refused.Load() != 1 || s.changes.Load() != 1 {
		t.Errorf("%d changes, %d refused", changes, s.refused.Load())
	}
}

// Connections that ask for nothing make room for others: any user of the host may open them.
func TestControlBesideSilentConnections(t *testing.T) {
	path := filepath.Join(folder(t), "s")
	l := require.Value(Listen(path))(t)
	s := NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	defer func() { cancel(); <-ended }()
	for range s.opening.Most()/2 + 20 {
		c := require.Value(net.Dial("unix", path))(t)
		defer c.Close()
	}
	require.Await(t, "20 silent connections are reset", func() error {
		if n := s.opening.Dropped(); n < 20 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	if err := askAt("unix:" + path); err != nil {
		t.Errorf("beside them: %v", err)
	}
}

// A user that is named may.
func TestNamedUser(t *testing.T) {
	needRoot(t)
	path := filepath.Join(folder(t), "s")
	l := require.Value(Listen(path))(t)
	s := NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), Users{stranger})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	defer func() { cancel(); <-ended }()
	if out, err := asStranger(t, "unix:"+path); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// The newest process has the socket; the one before leaves it alone at its end.
func TestReplacedSocketIsTheNewestProcesss(t *testing.T) {
	path := filepath.Join(folder(t), "s")
	before := require.Value(Listen(path))(t)
	after := require.Value(Listen(path))(t)
	if err := before.Close(); err != nil {
		t.Error(err)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal("the newer one is gone:", err)
	}
	c.Close()
	if err := after.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is left: %v", err)
	}
}

func TestNoAbstractNames(t *testing.T) {
	for _, path := range []string{"", "@psidecar"} {
		if l, err := Listen(path); err == nil {
			l.Close()
			t.Errorf("%q is taken", path)
		}
	}
}

// A socket whose folder is not there yet is opened when it is.
func TestAwaitTheFolderOfASocket(t *testing.T) {
	path := filepath.Join(folder(t), "in", "s")
	if err := os.WriteFile(filepath.Dir(path), nil, 0o600); err != nil { // a file in its place
		t.Fatal(err)
	}
	failed := make(chan struct{}, 1)
	opened := make(chan *Listener, 1)
	go func() { opened <- Await(t.Context().Done(), path, func(error) { failed <- struct{}{} }) }()
	<-failed
	require.NoError(t, os.Remove(filepath.Dir(path)))
	l := <-opened
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	over := make(chan struct{})
	close(over)
	if l := Await(over, "/proc/none/s", func(error) {}); l != nil {
		t.Error("a socket in /proc")
	}
}

// meet connects to a loopback listener whose server has the credentials, and
// returns the caller's identity.
func meet(t *testing.T, at string, users Users, connect func(address string)) (Local, error) {
	t.Helper()
	l, err := net.Listen("tcp", at)
	if err != nil {
		require.Missing(t, "%v", err)
	}
	defer l.Close()
	var done sync.WaitGroup
	done.Go(func() { connect(l.Addr().String()) })
	defer done.Wait()
	conn := require.Value(l.Accept())(t)
	defer conn.Close()
	failed := 0
	_, info, err := Credentials(nil, users, false, func(net.Addr, error) { failed++ }).ServerHandshake(conn)
	if err != nil != (failed == 1) {
		t.Errorf("%v, told %d times", err, failed)
	}
	local, _ := info.(Local)
	return local, err
}

// Over loopback the kernel identifies the caller.
func TestLoopbackUser(t *testing.T) {
	needRoot(t)
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(at, func(t *testing.T) {
			info, err := meet(t, at, nil, func(address string) {
				if c, err := net.Dial("tcp", address); err == nil {
					io.Copy(io.Discard, c)
					c.Close()
				}
			})
			if err != nil || info.UID != os.Geteuid() || !info.Trusted {
				t.Errorf("this user: %+v, %v", info, err)
			}
			info, err = meet(t, at, nil, func(address string) { asStranger(t, address) })
			if err != nil || info.UID != stranger || info.Trusted || !strings.Contains(info.Why, "--admin-uid") {
				t.Errorf("another user: %+v, %v", info, err)
			}
			info, err = meet(t, at, Users{stranger}, func(address string) { asStranger(t, address) })
			if err != nil || info.UID != stranger || !info.Trusted {
				t.Errorf("another user who is named: %+v, %v", info, err)
			}
		})
	}
}

// A caller that has closed the connection has no identity: a closed socket counts
// as root's in the kernel's tables.
func TestClosedSocketIsNobody(t *testing.T) {
	closed := make(chan struct{})
	l := require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	go func() {
		defer close(closed)
		if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
			c.Close()
		}
	}()
	conn := require.Value(l.Accept())(t)
	defer conn.Close()
	<-closed
	conn.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatal("the end does not come:", err)
	}
	if uid, err := loopbackUser(conn.(*net.TCPConn)); err == nil || uid != -1 {
		t.Errorf("user %d, %v", uid, err)
	}
}
