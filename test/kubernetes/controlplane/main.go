// Command controlplane is a Kubernetes control plane for tests in one file:
// its first argument says which part runs, the others are that part's own.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/restclient"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	if len(os.Args) < 2 {
		fail("no part is named")
	}
	part := os.Args[1]
	os.Args = append(os.Args[:1], os.Args[2:]...)
	// A part is made only where it is to run: each registers its feature gates
	// with the process.
	var command func() *cobra.Command
	switch part {
	case "etcd":
		etcdmain.Main(os.Args)
		return
	case "apiserver":
		command = apiserver.NewAPIServerCommand
	case "controllers":
		command = controllers.NewControllerManagerCommand
	case "scheduler":
		command = func() *cobra.Command { return scheduler.NewSchedulerCommand() }
	default:
		fail("no part is called " + part)
	}
	os.Exit(cli.Run(command()))
}

func fail(why string) {
	fmt.Fprintf(os.Stderr, "controlplane: %s; there are etcd, apiserver, controllers, scheduler\n", why)
	os.Exit(2)
}
