// Package launch runs a pipeline of package pipeline: on any engine with a job service, or on
// Prism, the engine in Beam's Go SDK, with worker processes of this host. It also has the
// worker pools, which start workers when an engine asks for them.
package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/apache/beam/sdks/v2/go/pkg/beam"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/core/runtime/graphx"
	pipepb "github.com/apache/beam/sdks/v2/go/pkg/beam/model/pipeline_v1"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/options/jobopts"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/runners/prism"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/runners/universal/runnerlib"
	"google.golang.org/protobuf/proto"

	"github.com/psidecar/psidecar/cmd/psidecar-beam/pipeline"
)

// OnPrism runs a pipeline on a Prism in this process, whose lanes go to the worker pools at the
// addresses, one each, of which there is at least one. It blocks until the pipeline is done.
// Prism starts one worker for each environment of a pipeline, so each lane gets an environment.
func OnPrism(ctx context.Context, p *beam.Pipeline, pools []string) error {
	edges, _, err := p.Build()
	if err != nil {
		return fmt.Errorf("building the pipeline: %w", err)
	}
	var envs []*pipepb.Environment
	for _, pool := range pools {
		env, err := graphx.CreateEnvironment(ctx, graphx.URNEnvExternal, func(context.Context) string { return pool })
		if err != nil {
			return fmt.Errorf("describing a worker: %w", err)
		}
		envs = append(envs, env)
	}
	job, err := graphx.Marshal(edges, &graphx.Options{Environment: envs[0]})
	if err != nil {
		return fmt.Errorf("building the pipeline: %w", err)
	}
	divide(job, envs)
	address, err := startPrism(ctx)
	if err != nil {
		return err
	}
	// The SDK wants a program to hand to the engine, for workers that are to be started from
	// it. Ours are running already, so an empty file will do.
	program, err := os.CreateTemp("", "psidecar-beam-*")
	if err != nil {
		return fmt.Errorf("making a temporary file: %w", err)
	}
	defer os.Remove(program.Name())
	defer program.Close()
	_, err = runnerlib.Execute(ctx, job, address, &runnerlib.JobOptions{
		Name: jobopts.GetJobName(), Worker: program.Name(),
		// A bundle that is split goes on twice at once in its worker, with twice
		// the memory.
		Experiments: []string{"prism_disable_sdf_split"},
	}, false)
	return plain(err)
}

// divide gives the transforms of each lane but the first an environment of its own. Transforms
// that belong to no lane stay in the first one's.
func divide(job *pipepb.Pipeline, envs []*pipepb.Environment) {
	c := job.GetComponents()
	var first string
	// There is exactly one.
	for id := range c.GetEnvironments() {
		first = id
	}
	ids := []string{first}
	for lane, env := range envs[1:] {
		id := fmt.Sprintf("%s-lane-%d", first, lane+1)
		env = proto.CloneOf(env)
		env.Dependencies = nil // the workers are there
		c.Environments[id] = env
		ids = append(ids, id)
	}
	for _, t := range c.GetTransforms() {
		if lane := laneOf(t.GetUniqueName()); lane > 0 && lane < len(ids) && t.GetEnvironmentId() == first {
			t.EnvironmentId = ids[lane]
		}
	}
}

// laneOf returns the lane in the unique name of a transform, which has all its scopes with
// slashes between; -1 if it is in none.
func laneOf(name string) int {
	for _, part := range strings.Split(name, "/") {
		if digits, ok := strings.CutPrefix(part, pipeline.LaneScope); ok {
			if lane, err := strconv.Atoi(digits); err == nil {
				return lane
			}
		}
	}
	return -1
}

// startPrism starts Prism's job service and returns its address. Prism cannot choose a port, so
// it gets one that was free a moment ago; another process may take that in between, which is an
// error.
func startPrism(ctx context.Context) (address string, err error) {
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		return "", fmt.Errorf("looking for a free port: %w", err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		return "", fmt.Errorf("looking for a free port: %w", err)
	}
	if _, err := prism.CreateJobServer(ctx, prism.Options{Port: port}); err != nil {
		return "", fmt.Errorf("starting Prism: %w", err)
	}
	return fmt.Sprintf("localhost:%d", port), nil
}

// OnEngine runs a pipeline on the engine that Beam's flags name, and waits for it unless they
// say --async.
func OnEngine(ctx context.Context, p *beam.Pipeline, runner string) error {
	_, err := beam.Run(ctx, runner, p)
	return plain(err)
}

// cause matches the error of one of our functions in what Beam makes of it: a text with the
// chain of its own callers, whose types do not survive the way from a worker.
var cause = regexp.MustCompile(`DoFn\[[^\n]*\] failed:\n([^\n]+)`)

// plain returns the error of our function without Beam's text around it, and other errors as
// they are.
func plain(err error) error {
	if err == nil {
		return nil
	}
	if found := cause.FindStringSubmatch(err.Error()); found != nil {
		return errors.New(found[1])
	}
	return err
}
