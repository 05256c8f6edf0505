# Sets the environment of tests with several processes. The variables of Open MPI, which other MPIs ignore, allow the
# user root and more processes than processors. They bind no process to a processor, keep all processes on this machine,
# and use only features that containers allow. ASAN_OPTIONS disables the leak check, because Open MPI leaks memory.
set(gatefold_mpi_environment
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
    OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_plm=isolated OMPI_MCA_ess_singleton_isolated=1
    OMPI_MCA_btl=self,vader OMPI_MCA_btl_vader_single_copy_mechanism=none ASAN_OPTIONS=detect_leaks=0)
