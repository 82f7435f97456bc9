package van

import (
	"errors"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/test/require"
)

// variables are a worker's environment.
func variables() map[string]string {
	return map[string]string{"DMLC_ROLE": "worker", "DMLC_NUM_SERVER": "2", "DMLC_NUM_WORKER": "3",
		"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": "9000"}
}

func lookupIn(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
}

func TestFromEnvironment(t *testing.T) {
	vars := variables()
	for name, value := range map[string]string{"DMLC_PS_ROOT_URI": "[fd00::1]", "PS_RESEND": "1", "PS_RESEND_TIMEOUT": "300",
		"PS_DROP_MSG": "5", "PS_HEARTBEAT_INTERVAL": "2", "PS_HEARTBEAT_TIMEOUT": "10", "PORT": "7", "DMLC_NODE_HOST": "fd00::2",
		"PS_VERBOSE": "1", "DMLC_LOCAL": "0", "DMLC_PS_VAN_TYPE": "zmq", "DMLC_PS_WATER_MARK": "9", "DMLC_INTERFACE": "lo"} {
		vars[name] = value
	}
	got := require.Value(FromEnvironment(lookupIn(vars)))(t)
	want := Config{Role: pslite.Worker, Servers: 2, Workers: 3, Root: "fd00::1", RootPort: 9000, NodeHost: "fd00::2", Interface: "lo",
		Port: 7, Resend: true, ResendTimeout: 300 * time.Millisecond, Drop: 5, Heartbeat: 2 * time.Second,
		HeartbeatTimeout: 10 * time.Second, Watermark: 9, Verbose: 1}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	for _, tc := range []struct{ name, value string }{
		{"DMLC_ROLE", "king"}, {"DMLC_ROLE", "-"}, {"DMLC_NUM_SERVER", "two"}, {"DMLC_NUM_SERVER", "0"}, {"DMLC_NUM_WORKER", "-"},
		{"DMLC_PS_ROOT_URI", "-"}, {"DMLC_PS_ROOT_URI", ""}, {"DMLC_PS_ROOT_PORT", "70000"}, {"DMLC_PS_ROOT_PORT", "-"},
		{"DMLC_LOCAL", "1"}, {"DMLC_PS_VAN_TYPE", "ibverbs"}, {"PS_RESEND", "yes"}, {"PS_RESEND_TIMEOUT", "0"},
		{"PS_DROP_MSG", "101"}, {"PORT", "-5"}, {"PS_VERBOSE", "loud"},
	} {
		vars := variables()
		if vars[tc.name] = tc.value; tc.value == "-" {
			delete(vars, tc.name)
		}
		_, err := FromEnvironment(lookupIn(vars))
		var e *EnvironmentError
		if !errors.As(err, &e) || e.Name != tc.name {
			t.Errorf("%s=%s: error %v", tc.name, tc.value, err)
		}
	}
}
