package main

import (
	"net"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

func TestUpRefusesWhatItsPartsRefuse(t *testing.T) {
	for want, args := range map[string][]string{
		"--sample \"x\"":             {"--sample", "x"},
		"want auto, compact or none": {"--codec", "zip"},
		"refuse everything":          {"--mesh-port", "0", "--mesh-only"},
		"--intercept-exclude":        {"--intercept-exclude", "70000", "--planner-listen", "127.0.0.1:0", "--planner-http", "", "--http", ""},
		"unknown flag":               {"--proxy-socket", "/run/x"},
	} {
		code, _, stderr := runTest(t, nil, append([]string{"up"}, args...)...)
		if code != 2 || !strings.Contains(stderr, want) {
			t.Errorf("%v: exit code %d, %q; want 2 and %q", args, code, stderr, want)
		}
	}
}

func TestUpNamesTheAddressInUse(t *testing.T) {
	l := require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	used := l.Addr().String()
	for _, flag := range []string{"--http", "--planner-listen", "--planner-http"} {
		args := []string{"up", "--http", "127.0.0.1:0", "--planner-listen", "127.0.0.1:0", "--planner-http", "127.0.0.1:0", flag, used}
		code, _, stderr := runTest(t, nil, args...)
		if code != 1 || !strings.Contains(stderr, flag+" "+used) {
			t.Errorf("%s: exit code %d, %q", flag, code, stderr)
		}
	}
}
