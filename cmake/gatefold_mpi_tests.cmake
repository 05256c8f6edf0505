# What tests of several processes set in their environment: variables of Open MPI's, which other MPIs do not read. As
# root, more processes than processors, none bound to one, all on this machine, and nothing that a container may forbid.
# It leaves memory that it has allocated.
set(gatefold_mpi_environment
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
    OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_plm=isolated OMPI_MCA_ess_singleton_isolated=1
    OMPI_MCA_btl=self,vader OMPI_MCA_btl_vader_single_copy_mechanism=none ASAN_OPTIONS=detect_leaks=0)
