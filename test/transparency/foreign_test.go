package transparency

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/psidecar/psidecar/internal/hosts"
)

// foreign are jobs of PS-lite's own programs and of BytePS's, where PSLITE_BIN
// and BYTEPS_BIN name the folders that they were built in: they are no part of
// this project.
func foreign(t *testing.T) (all []trial) {
	program := func(variable, name string) hosts.Program {
		path := filepath.Join(os.Getenv(variable), name)
		if info, err := os.Stat(path); os.Getenv(variable) == "" || err != nil || !info.Mode().IsRegular() {
			t.Logf("left out: %s=%q has no %s", variable, os.Getenv(variable), name)
			return nil
		}
		return hosts.Program{path}
	}
	add := func(x trial, p hosts.Program, servers, workers int) {
		if p != nil {
			x.job.Scheduler, x.job.Servers = p, hosts.Repeat(servers, p)
			x.job.Workers = hosts.Repeat(workers, p)
			all = append(all, x)
		}
	}
	// A server of PS-lite's ends when a request comes before it is ready.
	const again = 2
	add(trial{name: "PS-lite, connection", flaky: again}, program("PSLITE_BIN", "test_connection"), 4, 4)
	add(trial{name: "PS-lite, simple app", flaky: again}, program("PSLITE_BIN", "test_simple_app"), 4, 4)
	add(trial{name: "PS-lite, keys and values", flaky: again, says: "error: 0"}, program("PSLITE_BIN", "test_kv_app"), 4, 4)
	add(trial{name: "PS-lite, heartbeats", flaky: again, says: "error: 0", job: hosts.Job{Env: []string{"PS_HEARTBEAT_INTERVAL=1"}}},
		program("PSLITE_BIN", "test_kv_app"), 4, 4)
	if p := program("PSLITE_BIN", "test_kv_app_multi_workers"); p != nil {
		as := func(role string) hosts.Program { return hosts.Program{p[0], role} }
		all = append(all, trial{name: "PS-lite, two workers in one process", flaky: again, says: "error: 0", job: hosts.Job{
			Scheduler: as("scheduler"), Servers: []hosts.Program{as("server")}, Workers: []hosts.Program{as("worker")}, Env: []string{"DMLC_NUM_WORKER=2"}}})
	}
	byteps := program("BYTEPS_BIN", "test_benchmark")
	if byteps != nil {
		byteps = append(byteps, "1024000", "20", "0") // length, repetitions, push then pull
	}
	add(trial{name: "BytePS, push and pull", flaky: again, job: hosts.Job{Env: []string{"DMLC_ENABLE_RDMA=zmq", "BYTEPS_ENABLE_IPC=0",
		"NUM_KEY_PER_SERVER=4", "DMLC_GROUP_SIZE=1", "SKIP_DEV_ID_CHECK=1"}}}, byteps, 2, 2)
	return all
}
