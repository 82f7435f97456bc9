package discover

import (
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Cluster returns the API server's configuration and this process's namespace. Both come from
// the pod's service account if it runs in one, else from KUBECONFIG or the default kubeconfig.
// It reads files only and does not connect.
func Cluster() (*rest.Config, string, error) {
	c := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil)
	namespace, _, err := c.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("looking for a cluster: %w", err)
	}
	config, err := c.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("looking for a cluster, of this pod or of KUBECONFIG: %w", err)
	}
	return config, namespace, nil
}
