package discover

import (
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Cluster finds the API server, and the namespace that this process belongs
// to: of the pod that it runs in, or of the kubeconfig.
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
