package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

func TestProxyRefusesWhatMakesNoSense(t *testing.T) {
	for want, args := range map[string][]string{
		"want LISTEN=DEST":               {"--forward", "127.0.0.1:1"},
		"--mesh-ports \"9-8\"":           {"--mesh-ports", "1,9-8"},
		"want host:port":                 {"--forward", "127.0.0.1:0=:0"},
		"want auto, compact or none":     {"--codec", "zip"},
		"go together":                    {"--tls-cert", "a.pem"},
		"--tls-peer needs":               {"--tls-peer", "*.svc"},
		"exclude each other":             {"--tls-cert", "a", "--tls-key", "b", "--tls-ca", "c", "--insecure"},
		"--mesh-allow":                   {"--mesh-allow", "10.0.0.0/99"},
		"--max-connections":              {"--max-connections", "0"},
		"refuse everything":              {"--mesh-port", "0", "--mesh-only"},
		"cannot be negative":             {"--grace", "-1s"},
		"--proxy-memory":                 {"--proxy-memory", "1000"},
		"invalid argument \"x":           {"--mesh-port", "x"},
		"--outlive cannot be combined":   {"--outlive", "--act", "--planner", "127.0.0.1:9811"},
		"--outlive needs --proxy-socket": {"--outlive", "--proxy-socket", ""},
	} {
		code, _, stderr := runTest(t, nil, append([]string{"proxy"}, args...)...)
		if code != 2 || !strings.Contains(stderr, want) {
			t.Errorf("%v: exit code %d, %q; want 2 and %q", args, code, stderr, want)
		}
	}
	code, _, stderr := runTest(t, nil, "proxy", "--http", "", "--mesh-port", "0", "--forward", "192.0.2.1:1=127.0.0.1:1")
	if code != 1 || !strings.Contains(stderr, "192.0.2.1:1") {
		t.Errorf("an address that is not ours: exit code %d, %q", code, stderr)
	}
}

// The command forwards to a server, shows the connection, and ends in order.
func TestProxyCommand(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer server.Close()
	free := func() string {
		l := require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
		defer l.Close()
		return l.Addr().String()
	}
	in, status := free(), free()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan int, 1)
	var log bytes.Buffer
	go func() {
		ended <- run(ctx, env{
			args:   []string{"proxy", "--mesh-port", "0", "--forward", in + "=" + server.Addr().String(), "--http", status, "--grace", "5s"},
			stdout: io.Discard, stderr: &log, lookup: func(string) (string, bool) { return "", false },
		})
	}()
	var c net.Conn
	require.Await(t, "the proxy listens", func() (err error) {
		c, err = net.Dial("tcp", in)
		return err
	})
	defer c.Close()
	s := require.Value(server.Accept())(t)
	defer s.Close()
	c.Write([]byte("through the proxy"))
	got := make([]byte, 17)
	if _, err := io.ReadFull(s, got); err != nil || string(got) != "through the proxy" {
		t.Errorf("got %q, %v", got, err)
	}
	code, out, stderr := runTest(t, nil, "status", "--agent", "", "--proxy", "http://"+status, "--json")
	var report statusReport
	if err := json.Unmarshal([]byte(out), &report); code != 0 || err != nil {
		t.Fatalf("status: exit code %d, %v, %q", code, err, stderr)
	}
	if p := report.Proxy; p == nil || len(p.Connections) != 1 || p.Connections[0].Kind != "direct" || p.Connections[0].ToFar.JobBytes != 17 {
		t.Errorf("status --json: %s", out)
	}
	if _, out, _ := runTest(t, nil, "status", "--agent", "", "--proxy", "http://"+status); !strings.Contains(out, "1 connections of 1 carried") || !strings.Contains(out, "sent 17 as 17 bytes") {
		t.Errorf("status: %s", out)
	}
	stop()
	if _, err := c.Read(got); err != io.EOF { // at rest, so that it ends in order
		t.Errorf("when the proxy ends the connection gets %v, want its end", err)
	}
	c.Close()
	s.Close()
	if code := <-ended; code != 0 {
		t.Errorf("exit code %d: %s", code, &log)
	}
}
